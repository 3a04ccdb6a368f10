/// The door: what is too large, or makes no sense, is refused before the machine takes anything of it up.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/wire/cluster.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::cluster {

/// The longest time that a node may take to drain.
inline constexpr std::int64_t kMaxDrainMs = std::int64_t{7} * 24 * 3600 * 1000;

inline constexpr std::size_t kMaxNameBytes = 256;  ///< of a type, a node, an address, a GPU
inline constexpr std::size_t kMaxBundles = 1000;   ///< of a placement group
inline constexpr std::size_t kMaxReasonBytes = 2048;

/// Why the head refuses it (kLimit or kBadInput), or nothing. Its name is looked at when it comes
/// (check_name, runtime/core/names.hpp), and not in a record, which an older head may have written.
std::optional<ErrorInfo> check_spec(const ActorSpec& spec);
std::optional<ErrorInfo> check_group(const GroupSpec& spec);
std::optional<ErrorInfo> check_node(const NodeInfo& node);
/// Whether a stored record's GPUs are those of its demand.
bool holds_what_it_asked(const ActorRecord& record);
bool holds_what_it_asked(const SubmissionRecord& record);
bool are_gpus_of(const std::vector<std::uint32_t>& gpus, std::int64_t gpu_e4);
std::optional<ErrorInfo> check_job_name(const std::string& name);

/// At most kMaxReasonBytes of a text that somebody else wrote, and which is kept.
std::string clipped(std::string_view text);
ErrorInfo clipped(const ErrorInfo& error);

}  // namespace troupe::cluster
