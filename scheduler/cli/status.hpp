/// What the head says of its cluster, as words and as JSON.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/wire/messages.hpp"

namespace troupe::cli {

/// "alive", ...
const char* state_name(cluster::ActorState state);
/// Its id where it is not among them.
std::string job_name(const wire::StatusAnswer& all, JobId id);
/// "counter, sums": the actors for which a parked job is there.
std::string detached_of(const wire::StatusAnswer& all, JobId job);
/// "zone=a rack=2".
std::string labels_of(const cluster::NodeInfo& node);
/// "1 of 2 tpu": what is held of it.
std::string held_of(const wire::NodeStatus& node, const cluster::ResourceAmount& one);
/// What is said of memory, custom resources and labels, by name; memory in bytes.
nlohmann::json as_json(const cluster::ResourceAmounts& amounts);
nlohmann::json as_json(const std::vector<cluster::Label>& labels);
std::string node_name(const wire::StatusAnswer& all, NodeId id);
/// By id or name; a program's own node by its id alone, as it has the name of its program. Throws Refused
/// where there is none, BadInput where a name is that of several.
const wire::NodeStatus& node_called(const wire::StatusAnswer& all, const std::string& name);
const wire::ActorStatus& actor_called(const wire::StatusAnswer& all, const std::string& name);
/// On standard error: what --limit kept back.
void say_left_out(std::size_t count);
/// The same: filters left none of `there` things, and what else could be meant.
void say_none(const char* what, std::size_t there, const std::string& hint);
/// Asks the head; an empty address: the one that the folder remembers. Throws Error.
wire::StatusAnswer ask_status(const std::string& folder, const std::string& address);
/// Asks the head a question of one answer, and returns that, encoded.
wire::Bytes ask_head_of(const std::string& folder, const std::string& address, const wire::Control& message);
void print_json(const nlohmann::json& value);
using NodeList = std::vector<const wire::NodeStatus*>;
using ActorList = std::vector<const wire::ActorStatus*>;
/// A table, with a line for what each node that drains waits for.
void print_nodes(const NodeList& nodes);
/// `pids`: of those whose processes are known.
void print_actors(const wire::StatusAnswer& all, const ActorList& actors,
                  const std::map<ActorId, std::int64_t>& pids);
nlohmann::json as_json(const wire::NodeStatus& node);
nlohmann::json as_json(const wire::StatusAnswer& all, const wire::ActorStatus& actor);
/// Placement groups: a table, and what troupe group list -o json prints.
void print_groups(const wire::StatusAnswer& all);
nlohmann::json groups_as_json(const wire::StatusAnswer& all);
/// {"head", "nodes", "jobs", "actors", "groups", "waiting"}: what troupe status --json prints.
nlohmann::json as_json(const wire::StatusAnswer& all);

}  // namespace troupe::cli
