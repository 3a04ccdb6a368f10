/// The processes behind actors and jobs, as their nodes see them, and what those say they are at.
#pragma once

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
