/// The processes behind actors and jobs, as their nodes see them, and what those say they are at.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "runtime/node/process_list.hpp"
#include "runtime/wire/messages.hpp"
#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {

struct SeenProcess {
  NodeId node;
  node::ProcessStatus status;
};

/// Whether a node is worth a question. One that drains or leaves has processes still.
bool may_have_processes(const wire::NodeStatus& node);
/// Asks those nodes, 200 at most and for 20 s; one that does not answer is said on standard error.
std::vector<SeenProcess> ask_processes(const JobClientOptions& where, const wire::StatusAnswer& all);
/// How much of its package is there, in words, if that is what a job that starts waits for; empty: it is not,
/// or its node does not say.
std::string package_on_its_way(const JobClientOptions& where, const JobInfo& job);
/// By the actors in them. Of one that its node does not know there is none.
std::map<ActorId, std::int64_t> pids_of_actors(const std::vector<SeenProcess>& processes);
/// The same of these actors, which their nodes are asked for, as by ask_processes().
std::map<ActorId, std::int64_t> ask_pids(const JobClientOptions& where, const wire::StatusAnswer& all,
                                         const std::vector<const wire::ActorStatus*>& actors);
/// null: its process is not known.
nlohmann::json pid_as_json(const std::map<ActorId, std::int64_t>& pids, ActorId actor);
/// Those of a submitted job: its program, and its workers.
std::vector<SeenProcess> processes_of(const std::string& submission, const wire::StatusAnswer& all,
                                      std::vector<SeenProcess> seen);
/// A table; nothing where there are none.
void print_processes(const wire::StatusAnswer& all, const std::vector<SeenProcess>& processes);
/// {"pid", "node", "node_name", "title", "submission", "actors"}, and what it says of itself: numbers, and
/// "logical_ranks" as a list.
nlohmann::json as_json(const wire::StatusAnswer& all, const std::vector<SeenProcess>& processes);

/// Has the workers of a job, or of a node, or all of them written down what they are at.
int dump(int argc, char** argv);

}  // namespace troupe::cli
