// troupe status and troupe token: questions to the head.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "scheduler/cli/commands.hpp"
#include "scheduler/init/cluster_folder.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::cli {
namespace {

using cluster::format_cpus;
using nlohmann::json;

constexpr Duration kHeadAnswers = std::chrono::seconds(4);  // a head that died is back within one

ClusterFolder open(const std::string& path) {
  return ClusterFolder::open(path.empty() ? ClusterFolder::default_path() : path).value();
}

template <class T>
T ask(const std::string& path, const std::string& address, const wire::Control& message) {
  const auto folder = open(path);
  const auto contact = address.empty() ? folder.contact() : folder.contact(parse_endpoint(address).value());
  const auto bytes = folder.ask(contact.value(), message, kHeadAnswers).value();
  return wire::decode<T>(bytes).value();
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
  }
  return "?";
}

std::string job_name(const wire::StatusAnswer& all, JobId id) {
  for (const auto& job : all.jobs) {
    if (job.job == id) return job.name;
  }
  return to_string(id);
}

void print(const wire::StatusAnswer& all) {
  std::printf("head  %s\n\n%-18s %-20s %-22s %8s %8s %5s %6s %7s  %s\n", all.address.c_str(), "node", "name",
              "address", "cpus", "used", "gpus", "used", "actors", "state");
  for (const auto& n : all.nodes) {
    const std::string name = n.node.name + (n.node.gateway ? " (driver)" : "");
    std::printf("%-18s %-20s %-22s %8s %8s %5zu %6s %7d  %s\n", to_string(n.node.id).c_str(), name.c_str(),
                n.node.address.c_str(), format_cpus(n.node.cpu_e4).c_str(),
                format_cpus(n.cpu_used_e4).c_str(), n.node.gpus.size(), format_cpus(n.gpu_used_e4).c_str(),
                n.actors, n.state.c_str());
  }
  std::printf("\n%-18s %11s  %s\n", "job", "incarnation", "state");
  for (const auto& job : all.jobs)
    std::printf("%-18s %11u  %s\n", job.name.c_str(), job.incarnation, job.ended ? "ended" : "running");
  std::printf("\n%-18s %-18s %-18s %-18s %s\n", "actor", "class", "job", "node", "state");
  for (const auto& [actor, reason] : all.actors) {
    std::printf("%-18s %-18s %-18s %-18s %s\n", to_string(actor.actor).c_str(), actor.spec.type.c_str(),
                job_name(all, actor.spec.job).c_str(), to_string(actor.node).c_str(),
                state_name(actor.state));
  }
  for (const auto& spawn : all.waiting) std::printf("waits: %s\n", spawn.c_str());
}

json as_json(const wire::StatusAnswer& all) {
  json nodes = json::array(), jobs = json::array(), actors = json::array();
  for (const auto& n : all.nodes) {
    nodes.push_back({{"id", to_string(n.node.id)},
                     {"name", n.node.name},
                     {"address", n.node.address},
                     {"gateway", n.node.gateway},
                     {"cpus", static_cast<double>(n.node.cpu_e4) / cluster::kCpu},
                     {"cpus_used", static_cast<double>(n.cpu_used_e4) / cluster::kCpu},
                     {"gpus", n.node.gpus},
                     {"gpus_used", static_cast<double>(n.gpu_used_e4) / cluster::kGpu},
                     {"actors", n.actors},
                     {"state", n.state}});
  }
  for (const auto& job : all.jobs) {
    jobs.push_back({{"name", job.name},
                    {"id", to_string(job.job)},
                    {"incarnation", job.incarnation},
                    {"ended", job.ended}});
  }
  for (const auto& [actor, reason] : all.actors) {
    actors.push_back({{"id", to_string(actor.actor)},
                      {"class", actor.spec.type},
                      {"name", actor.spec.name},
                      {"job", to_string(actor.spec.job)},
                      {"node", to_string(actor.node)},
                      {"gpus", actor.gpus},
                      {"state", state_name(actor.state)},
                      {"reason", reason}});
  }
  return {
      {"head", all.address}, {"nodes", nodes}, {"jobs", jobs}, {"actors", actors}, {"waiting", all.waiting}};
}

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

int status(const StatusOptions& options) {
  const auto all = ask<wire::StatusAnswer>(options.folder, options.address, wire::StatusAsk{1});
  if (options.json) {
    std::printf("%s\n", as_json(all).dump(2, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    print(all);
  }
  return 0;
}

int token(const TokenOptions& options) {
  const auto answer = ask<wire::TokenAnswer>(options.folder, "", wire::TokenAsk{1, options.lifetime_s});
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

}  // namespace troupe::cli
