// troupe status, token and key: questions to the head.
#include "scheduler/cli/status.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>
#include <utility>

#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/processes.hpp"
#include "scheduler/init/cluster_folder.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::cli {
namespace {

using cluster::format_cpus;
using nlohmann::json;

constexpr Duration kLooksAgain = std::chrono::milliseconds(500);
constexpr Duration kNodeLeaves = std::chrono::seconds(30);  // its workers are killed after 2 s
constexpr Duration kNodeAnswers = std::chrono::seconds(5);
constexpr Duration kHeadAnswers = std::chrono::seconds(4);  // a head that died is back within one

template <class T>
T ask_for(const std::string& path, const std::string& address, const wire::Control& message) {
  return wire::decode<T>(ask_head_of(path, address, message)).value();
}

}  // namespace

wire::Bytes ask_head_of(const std::string& path, const std::string& address, const wire::Control& message) {
  const auto folder = ClusterFolder::find(path).value();
  const auto contact = address.empty() ? folder.contact() : folder.contact(parse_endpoint(address).value());
  return folder.ask(contact.value(), message, kHeadAnswers).value();
}

const char* state_name(cluster::ActorState state) {
  switch (state) {
    case cluster::ActorState::kStarting:
      return "starting";
    case cluster::ActorState::kAlive:
      return "alive";
    case cluster::ActorState::kEnding:
      return "ending";
    case cluster::ActorState::kDead:
      return "dead";
    case cluster::ActorState::kRestarting:
      return "restarting";
  }
  return "?";
}

std::string job_name(const wire::StatusAnswer& all, JobId id) {
  for (const auto& job : all.jobs) {
    if (job.job == id) return job.name;
  }
  return to_string(id);
}

std::string detached_of(const wire::StatusAnswer& all, JobId job) {
  std::string names;
  for (const auto& one : all.actors) {
    const cluster::ActorSpec& spec = one.record.spec;
    if (spec.job == job && spec.detached && one.record.state != cluster::ActorState::kEnding)
      names += (names.empty() ? "" : ", ") + spec.name;
  }
  return names;
}

std::string node_name(const wire::StatusAnswer& all, NodeId id) {
  for (const auto& node : all.nodes) {
    if (node.node.id == id) return node.node.name;
  }
  return id ? to_string(id) : "-";
}

std::string labels_of(const cluster::NodeInfo& node) {
  std::string text;
  for (const auto& label : node.other.labels)
    text += (text.empty() ? "" : " ") + label.key + "=" + label.value;
  return text;
}

std::string held_of(const wire::NodeStatus& node, const cluster::ResourceAmount& one) {
  const std::int64_t used = amount_of(node.other_used, one.name);
  const bool is_memory = one.name == cluster::kMemory;
  return (is_memory ? cluster::format_bytes(used) : format_cpus(used)) + " of " + format_amount(one);
}

json as_json(const cluster::ResourceAmounts& amounts) {
  json all = json::object();
  for (const auto& one : amounts) {
    all[one.name] = one.name == cluster::kMemory ? json(one.amount)
                                                 : json(static_cast<double>(one.amount) / cluster::kCpu);
  }
  return all;
}

json as_json(const std::vector<cluster::Label>& labels) {
  json all = json::object();
  for (const auto& label : labels) all[label.key] = label.value;
  return all;
}

void print_json(const json& value) {
  std::printf("%s\n", value.dump(2, ' ', false, json::error_handler_t::replace).c_str());
}

void print_nodes(const NodeList& nodes) {
  std::printf("%-18s %-20s %-22s %8s %8s %5s %6s %7s  %s\n", "node", "name", "address", "cpus", "used",
              "gpus", "used", "actors", "state");
  for (const auto* node : nodes) {
    const auto& n = *node;
    const std::string name = escape_name(n.node.name) + (n.node.gateway ? " (driver)" : "");
    std::printf("%-18s %-20s %-22s %8s %8s %5zu %6s %7d  %s\n", to_string(n.node.id).c_str(), name.c_str(),
                n.node.address.c_str(), format_cpus(n.node.cpu_e4).c_str(),
                format_cpus(n.cpu_used_e4).c_str(), n.node.gpus.size(), format_cpus(n.gpu_used_e4).c_str(),
                n.actors, n.state.c_str());
  }
  std::map<std::string, int> called;
  for (const auto* n : nodes) called[n->node.name] += n->node.gateway ? 0 : 1;
  for (const auto& [name, count] : called) {
    if (count > 1)
      std::printf("%d nodes are called %s: tell them apart by their ids, or start them with --name\n", count,
                  escape_name(name).c_str());
  }
  for (const auto* n : nodes) {
    const auto& all = n->node.other.amounts;
    const bool is_plain =
        n->other_used.empty() && (all.empty() || (all.size() == 1 && all[0].name == cluster::kMemory));
    const std::string labels = labels_of(n->node);
    if (is_plain && labels.empty()) continue;
    std::string text;
    for (const auto& one : all) text += (text.empty() ? " holds " : ", ") + held_of(*n, one);
    if (!labels.empty()) text += (text.empty() ? " has labels " : "; labels ") + labels;
    std::printf("%s%s\n", escape_name(n->node.name).c_str(), escape_name(text).c_str());
  }
  for (const auto* n : nodes) {
    if (!n->why.empty())
      std::printf("%s drains: %s\n", escape_name(n->node.name).c_str(), escape_name(n->why).c_str());
  }
}

void print_actors(const wire::StatusAnswer& all, const ActorList& actors,
                  const std::map<ActorId, std::int64_t>& pids) {
  std::printf("%-18s %-18s %-18s %-18s %-8s %s\n", "actor", "class", "job", "node", "pid", "state");
  for (const auto* one : actors) {
    const auto& [actor, reason] = *one;
    const bool settled = actor.state == cluster::ActorState::kAlive;
    std::string why = settled ? "" : ": " + reason;
    if (actor.spec.detached) why += ", detached as " + actor.spec.name;
    const auto pid = pids.find(actor.actor);
    std::printf("%-18s %-18s %-18s %-18s %-8s %s%s\n", to_string(actor.actor).c_str(),
                escape_name(actor.spec.type).c_str(), escape_name(job_name(all, actor.spec.job)).c_str(),
                escape_name(node_name(all, actor.node)).c_str(),
                pid == pids.end() ? "-" : std::to_string(pid->second).c_str(), state_name(actor.state),
                escape_name(why).c_str());
  }
}

namespace {

template <class T>
std::vector<const T*> pointers(const std::vector<T>& all) {
  std::vector<const T*> list;
  list.reserve(all.size());
  for (const T& one : all) list.push_back(&one);
  return list;
}

void print_programs(const wire::StatusAnswer& all, bool with_ended) {
  auto jobs = pointers(all.jobs);
  const auto is_over = [](const auto* job) { return job->ended && !job->parked; };
  const auto ended = std::count_if(jobs.begin(), jobs.end(), is_over);
  if (!with_ended) std::erase_if(jobs, is_over);
  std::sort(jobs.begin(), jobs.end(), [](const auto* a, const auto* b) {
    return std::tie(a->ended, a->name) < std::tie(b->ended, b->name);
  });
  std::printf("\n%-18s %11s  %s\n", "job", "incarnation", "state");
  for (const auto* job : jobs) {
    const std::string of = job->submission.empty() ? "" : " (submitted job " + job->submission + ")";
    const std::string parked =
        job->parked ? "parked: no program of it runs, and detached actors stay: " + detached_of(all, job->job)
                    : "";
    const std::string state = job->parked ? parked : job->ended ? "ended" : "running";
    std::printf("%-18s %11u  %s%s\n", escape_name(job->name).c_str(), job->incarnation,
                escape_name(state).c_str(), escape_name(of).c_str());
  }
  if (!with_ended && ended > 0)
    std::printf("and %s ended: troupe status --all, or troupe job list\n",
                ended == 1 ? "1 that has" : (std::to_string(ended) + " that have").c_str());
}

void print(const wire::StatusAnswer& all, const std::vector<SeenProcess>& processes, bool with_ended) {
  std::printf("head  %s\n\n", all.address.c_str());
  print_nodes(pointers(all.nodes));
  print_programs(all, with_ended);
  std::printf("\n");
  print_actors(all, pointers(all.actors), pids_of_actors(processes));
  if (!all.groups.empty()) {
    std::printf("\n");
    print_groups(all);
  }
  for (const auto& spawn : all.waiting) std::printf("waits: %s\n", escape_name(spawn).c_str());
}

}  // namespace

json as_json(const wire::NodeStatus& n) {
  return {{"id", to_string(n.node.id)},
          {"name", n.node.name},
          {"address", n.node.address},
          {"gateway", n.node.gateway},
          {"cpus", static_cast<double>(n.node.cpu_e4) / cluster::kCpu},
          {"cpus_used", static_cast<double>(n.cpu_used_e4) / cluster::kCpu},
          {"gpus", n.node.gpus},
          {"gpus_used", static_cast<double>(n.gpu_used_e4) / cluster::kGpu},
          {"resources", as_json(n.node.other.amounts)},
          {"resources_used", as_json(n.other_used)},
          {"labels", as_json(n.node.other.labels)},
          {"actors", n.actors},
          {"state", n.state},
          {"why", n.why.empty() ? json() : json(n.why)}};
}

json as_json(const wire::StatusAnswer& all, const wire::ActorStatus& one) {
  const auto& [actor, reason] = one;
  return {{"id", to_string(actor.actor)},
          {"class", actor.spec.type},
          {"name", actor.spec.name},
          {"job", to_string(actor.spec.job)},
          {"job_name", job_name(all, actor.spec.job)},
          {"node", to_string(actor.node)},
          {"node_name", node_name(all, actor.node)},
          {"cpus", static_cast<double>(actor.spec.demand.cpu_e4) / cluster::kCpu},
          {"gpus", actor.gpus},
          {"resources", as_json(actor.spec.demand.other.amounts)},
          {"labels", as_json(actor.spec.demand.other.labels)},
          {"state", state_name(actor.state)},
          {"restarts", actor.restarts},
          {"detached", actor.spec.detached},
          {"why", reason}};
}

json as_json(const wire::StatusAnswer& all) {
  json nodes = json::array(), jobs = json::array(), actors = json::array();
  for (const auto& n : all.nodes) nodes.push_back(as_json(n));
  for (const auto& job : all.jobs) {
    jobs.push_back({{"name", job.name},
                    {"id", to_string(job.job)},
                    {"incarnation", job.incarnation},
                    {"ended", job.ended},
                    {"parked", job.parked}});
  }
  for (const auto& actor : all.actors) actors.push_back(as_json(all, actor));
  return {{"head", all.address}, {"nodes", nodes},         {"jobs", jobs},
          {"actors", actors},    {"waiting", all.waiting}, {"groups", groups_as_json(all)}};
}

namespace {

/// A file that was there may have been opened by others: it is replaced, not written to.
void write_secret(const std::string& path, const std::string& text) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    throw BadConfig("cannot write the token to " + path, "it is no plain file", "choose another --output");
  }
  const std::string temporary = path + ".new";
  ::unlink(temporary.c_str());
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  errno = fd ? ENOSPC : errno;  // what a short write means
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(temporary.c_str());
    throw_error(io_error("cannot write " + path, why, "choose another --output"));
  }
}

}  // namespace

wire::StatusAnswer ask_status(const std::string& folder, const std::string& address) {
  return ask_for<wire::StatusAnswer>(folder, address, wire::StatusAsk{1});
}

int status(const StatusOptions& options) {
  const auto all = ask_status(options.folder, options.address);
  const auto processes = ask_processes({options.address, options.folder}, all);
  if (options.json || options.output == "json") {
    json shown = as_json(all);
    const auto pids = pids_of_actors(processes);
    for (std::size_t i = 0; i < all.actors.size(); ++i)
      shown["actors"][i]["pid"] = pid_as_json(pids, all.actors[i].record.actor);
    shown["processes"] = as_json(all, processes);
    print_json(shown);
  } else {
    print(all, processes, options.all);
    print_processes(all, processes);
  }
  return 0;
}

namespace {

/// Ctrl-C ends the command alone.
void watch_interrupts_of_drain(const DrainOptions& of) {
  static std::string text;  // for the handler, which has no argument
  const std::string there = (of.folder.empty() ? "" : " --folder " + shell_word(of.folder)) +
                            (of.address.empty() ? "" : " --address " + shell_word(of.address));
  const std::string command = "troupe drain" + there + " " + shell_word(of.node);
  text = escape_name("node " + of.node + " goes on draining: " + command + " --cancel takes it back, " +
                     command + " waits for its end again, and troupe status" + there +
                     " shows what it waits for") +
         "\n";
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(128 + signal);
  };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

constexpr std::string_view kWaitsFor = "waits for ";  // as the head says it (why_drains)

/// A drained node says goodbye: one that is gone without has lost what still ran there.
void throw_if_died(const std::string& name, const std::string& how, const std::string& waited_for) {
  if (how.empty()) return;
  const std::string ran = waited_for.starts_with(kWaitsFor) ? waited_for.substr(kWaitsFor.size()) : "";
  throw_error({ErrorCode::kActorDied, "node " + name + " died before it had left",
               escape_name(how + (ran.empty() ? "" : "; with it ended " + ran)),
               "a node that is started there now is a new one, and does not drain"});
}

}  // namespace

/// Asked again and again, over a head that dies meanwhile.
int drain(const DrainOptions& options) {
  wire::DrainAsk ask{1, options.node, options.grace_s * 1000, options.cancel};
  auto answer = ask_for<wire::DrainAnswer>(options.folder, options.address, ask);
  const std::string name = escape_name(answer.name);
  ask.only_asks = true;
  ask.node = to_string(answer.node);
  const MonotonicClock clock;
  if (options.cancel) {
    const Instant until = clock.now() + kNodeAnswers;
    while (answer.drains && !answer.is_gone && clock.now() < until) {
      std::this_thread::sleep_for(kLooksAgain);
      answer = ask_for<wire::DrainAnswer>(options.folder, options.address, ask);
    }
    if (answer.drains || answer.is_gone) {
      if (answer.is_gone) throw_if_died(name, answer.why, "");
      throw_error({ErrorCode::kRefused, "node " + name + (answer.is_gone ? " has left" : " goes on draining"),
                   answer.is_gone ? "its drain was over" : "its own machine told it to (SIGTERM)",
                   "start a node there again"});
    }
    std::printf("node %s goes on\n", name.c_str());
    return 0;
  }
  if (!options.no_wait) watch_interrupts_of_drain(options);
  std::string said = " ";  // not yet; then what it waits for
  const Instant until = clock.now() + std::chrono::seconds(options.grace_s) + kNodeLeaves;
  while (!answer.is_gone && answer.drains && !options.no_wait) {
    // Said again when it waits for something else, not every second.
    const std::string what = answer.why.substr(0, answer.why.find("; it leaves in"));
    if (std::exchange(said, what) != what)
      std::printf("node %s drains%s%s\n", name.c_str(), answer.why.empty() ? "" : ": ",
                  escape_name(answer.why).c_str());
    std::fflush(stdout);
    if (clock.now() > until)
      throw_error({ErrorCode::kTimeout, "node " + name + " has not left", "its grace time is over",
                   "look at its log, or end it on its machine"});
    std::this_thread::sleep_for(kLooksAgain);
    answer = ask_for<wire::DrainAnswer>(options.folder, options.address, ask);
  }
  if (answer.is_gone) {
    throw_if_died(name, answer.why, said);
    std::printf("node %s has left\n", name.c_str());
    return 0;
  }
  if (answer.drains) {
    std::printf("node %s drains\n", name.c_str());
    return 0;
  }
  std::fprintf(stderr, "troupe: node %s does not drain any more: it was cancelled (troupe drain again)\n",
               name.c_str());
  return 1;
}

int token(const TokenOptions& options) {
  const auto answer = ask_for<wire::TokenAnswer>(options.folder, "", wire::TokenAsk{1, options.lifetime_s});
  if (!options.output.empty()) {
    write_secret(options.output, answer.token + "\n");
    return 0;
  }
  std::printf("%s\n", answer.token.c_str());
  struct stat info {};
  if (::fstat(STDOUT_FILENO, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 077) != 0) {
    std::fprintf(stderr,
                 "troupe: others may read the file that this secret went to, so --token-file will refuse it: "
                 "remove it, and use troupe token --output FILE\n");
  }
  return 0;
}

int key(const KeyOptions& options) {
  if (!options.remove.empty()) {
    ask_head_of(options.folder, "", wire::KeyRemoveAsk{1, options.remove});
    return 0;
  }
  const auto all = ask_for<wire::KeysAnswer>(options.folder, "", wire::KeysAsk{1}).keys;
  std::map<std::string, std::vector<std::string>> nodes;
  for (const auto& entry : all) nodes[entry.brought_by].push_back(entry.name);
  const auto status = ask_status(options.folder, "");
  const auto called = [&](const std::string& node) {
    return node_name(status, NodeId{std::strtoull(node.c_str(), nullptr, 16)});
  };
  json machines = json::array();
  const bool as_json = options.json || options.output == "json";
  if (!as_json) std::printf("%-26s %-42s %s\n", "machine", "key", "nodes");
  for (const auto& entry : all) {
    if (!entry.brought_by.empty()) continue;
    std::string brought;
    for (const auto& node : nodes[entry.name])
      brought += (brought.empty() ? "" : ", ") + (called(node) == node ? "" : called(node) + " ") + node;
    if (as_json) {
      json names = json::array();
      for (const auto& node : nodes[entry.name]) names.push_back(called(node));
      machines.push_back({{"name", entry.name},
                          {"key", entry.public_key},
                          {"nodes", nodes[entry.name]},
                          {"node_names", names}});
    } else {
      std::printf("%-26s %-42s %s\n", entry.name.c_str(), entry.public_key.c_str(),
                  escape_name(brought).c_str());
    }
  }
  if (as_json) print_json(machines);
  return 0;
}

}  // namespace troupe::cli
