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
/// {"head", "nodes", "jobs", "actors", "waiting"}: what troupe status --json prints.
nlohmann::json as_json(const wire::StatusAnswer& all);

}  // namespace troupe::cli
