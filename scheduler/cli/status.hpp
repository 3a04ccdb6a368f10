/// What the head says of its cluster, as words and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/wire/messages.hpp"

namespace troupe::cli {

/// "alive", ...
const char* state_name(cluster::ActorState state);
/// Its id where it is not among them.
std::string job_name(const wire::StatusAnswer& all, JobId id);
std::string node_name(const wire::StatusAnswer& all, NodeId id);
/// Asks the head; an empty address: the one that the folder remembers. Throws Error.
wire::StatusAnswer ask_status(const std::string& folder, const std::string& address);
/// Placement groups: a table, and what troupe group list -o json prints.
void print_groups(const wire::StatusAnswer& all);
nlohmann::json groups_as_json(const wire::StatusAnswer& all);
/// {"head", "nodes", "jobs", "actors", "groups", "waiting"}: what troupe status --json prints.
nlohmann::json as_json(const wire::StatusAnswer& all);

}  // namespace troupe::cli
