// troupe actor: actors that processes of their own, or CPUs and GPUs, are held for.
#include <cstdio>
#include <set>

#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/job.hpp"
#include "scheduler/cli/job_names.hpp"
#include "scheduler/cli/processes.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::cli {
namespace {

using cluster::format_cpus;
using nlohmann::json;

constexpr const char* kActorFooter =
    "Those that the head knows: each has a process of its own, or holds CPUs or GPUs. Of light actors their "
    "job\n"
    "alone knows.\n"
    "  troupe actor list --job mnist --state starting\n"
    "  troupe actor show 5b6a3c1c2ad4ab0e\n"
    "  troupe actor kill 5b6a3c1c2ad4ab0e --reason 'it hangs'\n";

struct ActorWords {
  std::string folder, address, actor, job, node, type, state, reason;
  std::string output = "table";
  std::int64_t limit = 0;
};

/// Of the filters that were given, what they could have named.
std::string what_there_is(const ActorWords& words, const wire::StatusAnswer& all) {
  std::set<std::string> jobs, nodes, types, states;
  for (const auto& one : all.actors) {
    jobs.insert(job_name(all, one.record.spec.job));
    nodes.insert(node_name(all, one.record.node));
    types.insert(one.record.spec.type);
    states.insert(state_name(one.record.state));
  }
  std::string hint;
  const auto add = [&](const std::string& wanted, const char* what, const std::set<std::string>& names) {
    if (wanted.empty()) return;
    hint += std::string(hint.empty() ? "" : "; ") + what;
    for (const std::string& name : names) hint += (name == *names.begin() ? " " : ", ") + name;
  };
  add(words.job, "their jobs are", jobs);
  add(words.node, "their nodes are", nodes);
  add(words.type, "their classes are", types);
  add(words.state, "their states are", states);
  return hint;
}

/// By id or name, or by those of the submitted job whose program it is.
std::set<JobId> jobs_called(const ActorWords& words, const wire::StatusAnswer& all) {
  std::set<JobId> found;
  for (const auto& job : all.jobs) {
    if (to_string(job.job) == words.job || job.name == words.job || job.submission == words.job)
      found.insert(job.job);
  }
  if (!found.empty() || words.job.empty()) return found;
  JobClient jobs({words.address, words.folder});
  const std::string submission = job_called(jobs, words.job);
  for (const auto& job : all.jobs) {
    if (!submission.empty() && job.submission == submission) found.insert(job.job);
  }
  return found;
}

int list(const ActorWords& words) {
  const auto all = ask_status(words.folder, words.address);
  const auto is = [](const std::string& wanted, const std::string& id, const std::string& name) {
    return wanted.empty() || wanted == id || wanted == name;
  };
  const std::set<JobId> jobs = jobs_called(words, all);
  ActorList actors;
  for (const auto& one : all.actors) {
    const auto& actor = one.record;
    if ((words.job.empty() || jobs.contains(actor.spec.job)) &&
        is(words.node, to_string(actor.node), node_name(all, actor.node)) &&
        is(words.type, actor.spec.type, actor.spec.type) &&
        is(words.state, state_name(actor.state), state_name(actor.state)))
      actors.push_back(&one);
  }
  const std::size_t found = actors.size();
  if (words.limit > 0 && found > static_cast<std::size_t>(words.limit))
    actors.resize(static_cast<std::size_t>(words.limit));
  const auto pids = ask_pids({words.address, words.folder}, all, actors);
  if (words.output == "json") {
    json shown = json::array();
    for (const auto* actor : actors) {
      shown.push_back(as_json(all, *actor));
      shown.back()["pid"] = pid_as_json(pids, actor->record.actor);
    }
    print_json(shown);
  } else {
    print_actors(all, actors, pids);
  }
  say_left_out(found - actors.size());
  if (!words.job.empty() && jobs.empty()) {
    std::fprintf(stderr,
                 "troupe: there is no job %s: troupe job list shows submitted ones, troupe status all\n",
                 escape_name(words.job).c_str());
  } else if (found == 0 && !all.actors.empty()) {
    say_none("actor", all.actors.size(), what_there_is(words, all));
  }
  return 0;
}

int show(const ActorWords& words) {
  const auto all = ask_status(words.folder, words.address);
  const wire::ActorStatus& one = actor_called(all, words.actor);
  const auto pids = ask_pids({words.address, words.folder}, all, {&one});
  if (words.output == "json") {
    json shown = as_json(all, one);
    shown["pid"] = pid_as_json(pids, one.record.actor);
    print_json(shown);
    return 0;
  }
  const auto line = [](const char* what, const std::string& text) {
    std::printf("%-12s %s\n", what, escape_name(text).c_str());
  };
  const auto& actor = one.record;
  line("actor", to_string(actor.actor));
  if (!actor.spec.name.empty()) line("name", actor.spec.name);
  line("class", actor.spec.type);
  line("job", job_name(all, actor.spec.job) + " (" + to_string(actor.spec.job) + ")");
  line("node", node_name(all, actor.node) + (actor.node ? " (" + to_string(actor.node) + ")" : ""));
  if (const auto pid = pids.find(actor.actor); pid != pids.end()) line("pid", std::to_string(pid->second));
  line("state", state_name(actor.state));
  line("why", one.reason);
  line("CPUs", format_cpus(actor.spec.demand.cpu_e4));
  line("GPUs", format_cpus(actor.spec.demand.gpu_e4));
  if (const auto& other = actor.spec.demand.other; !other.empty()) line("holds", format_other(other));
  line("restarts", std::to_string(actor.restarts));
  if (actor.spec.detached) line("detached", "it outlives the program that spawned it");
  return 0;
}

int kill(const ActorWords& words) {
  const auto all = ask_status(words.folder, words.address);
  const wire::ActorStatus& one = actor_called(all, words.actor);
  const std::string why = "troupe actor kill" + (words.reason.empty() ? "" : ": " + words.reason);
  ask_head_of(words.folder, words.address, wire::KillAsk{{{}, {}, one.record.actor}, why, 1});
  std::printf("actor %s (%s of job %s) is killed\n", to_string(one.record.actor).c_str(),
              escape_name(one.record.spec.type).c_str(),
              escape_name(job_name(all, one.record.spec.job)).c_str());
  return 0;
}

}  // namespace

const wire::ActorStatus& actor_called(const wire::StatusAnswer& all, const std::string& name) {
  const wire::ActorStatus* found = nullptr;
  std::string ids;
  for (const auto& actor : all.actors) {
    const std::string id = to_string(actor.record.actor);
    if (id == name) return actor;
    if (name.empty() || actor.record.spec.name != name) continue;
    found = &actor;
    ids += (ids.empty() ? "" : ", ") + id;
  }
  if (found == nullptr)
    throw_error({ErrorCode::kRefused, "there is no actor " + name, "none that lives has that id or name",
                 "troupe actor list shows those that live; how a detached one ended is in the head's log"});
  if (ids.find(',') != std::string::npos)
    throw_error({ErrorCode::kBadInput, "cannot tell which actor is meant", "several jobs have a " + name,
                 "give one's id: " + ids});
  return *found;
}

int actor(int argc, char** argv) {
  ActorWords words;
  CLI::App app("Shows and kills actors of a cluster.", "troupe actor");
  app.footer(kActorFooter);
  app.require_subcommand(1);
  auto* listed = app.add_subcommand("list", "All of them: where they are, or what they wait for");
  listed->footer("  troupe actor list --job mnist --node gpu-7 -o json\n");
  listed->add_option("--job", words.job, "Those of that job alone (name or id; of a submitted one, too)")
      ->check(not_empty());
  listed->add_option("--node", words.node, "Those on that node alone (name or id)")->check(not_empty());
  listed->add_option("--class", words.type, "Those of that class alone")->check(not_empty());
  listed->add_option("--state", words.state, "Those in that state alone")
      ->check(CLI::IsMember({"starting", "alive", "ending", "restarting"}));
  listed->add_option("--limit", words.limit, "The first so many of those alone [default: all]")
      ->check(whole_number(1, 1'000'000));
  auto* shown = app.add_subcommand("show", "One of them");
  shown->footer("  troupe actor show 5b6a3c1c2ad4ab0e\n");
  auto* killed = app.add_subcommand("kill", "Kill one; max_restarts does not start it again");
  killed->footer(
      "For the head's owner. Calls of it fail with the reason.\n"
      "  troupe actor kill 5b6a3c1c2ad4ab0e --reason 'it hangs'\n");
  killed->add_option("--reason", words.reason, "What callers hear");
  for (auto* command : {shown, killed})
    command->add_option("actor", words.actor, "Its id, or its name")
        ->required()
        ->check(not_empty("give an id or a name that troupe actor list shows"));
  for (auto* command : {listed, shown}) add_output_option(*command, words.output);
  for (auto* command : {listed, shown, killed}) add_head_options(*command, words.folder, words.address);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return say_usage(app, error);
  }
  if (listed->parsed()) return list(words);
  return shown->parsed() ? show(words) : kill(words);
}

}  // namespace troupe::cli
