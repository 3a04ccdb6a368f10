#include "scheduler/cluster/limits.hpp"

#include <algorithm>
#include <set>

#include "runtime/core/names.hpp"

namespace troupe::cluster {
namespace {

ErrorInfo too_long(const std::string& what, const std::string& part, std::size_t size, std::size_t most,
                   std::string todo) {
  return {ErrorCode::kLimit, what,
          part + " has " + std::to_string(size) + " bytes, and " + std::to_string(most) + " are the most",
          std::move(todo)};
}

std::string gpus_wrong(std::int64_t gpu_e4) {
  return format_cpus(gpu_e4) + " GPUs are neither a part of one, nor 0 to " + std::to_string(kMaxGpus) +
         " whole ones";
}

std::string cpus_wrong(std::int64_t cpu_e4) {
  return format_cpus(cpu_e4) + " CPUs are not between 0 and " + format_cpus(kMaxCpu_e4);
}

bool is_count_of_cpus(std::int64_t cpu_e4) {
  return cpu_e4 >= 0 && cpu_e4 <= kMaxCpu_e4;
}

}  // namespace

bool are_gpus_of(const std::vector<std::uint32_t>& gpus, std::int64_t gpu_e4) {
  if (static_cast<std::int64_t>(gpus.size()) != count_of_gpus(gpu_e4)) return false;
  return std::set<std::uint32_t>(gpus.begin(), gpus.end()).size() == gpus.size() &&
         std::all_of(gpus.begin(), gpus.end(), [](std::uint32_t gpu) { return gpu < kMaxGpus; });
}

std::optional<ErrorInfo> check_group(const GroupSpec& spec) {
  const std::string what = "cannot make a placement group";
  const std::string todo =
      "give each bundle CPUs, GPUs, memory or custom resources: {{.num_cpus = 1}, {.num_cpus = 1}}";
  if (spec.bundles.empty()) return ErrorInfo{ErrorCode::kBadInput, what, "it has no bundles", todo};
  if (spec.bundles.size() > kMaxBundles) {
    return ErrorInfo{ErrorCode::kLimit, what,
                     "it has " + std::to_string(spec.bundles.size()) + " bundles, and " +
                         std::to_string(kMaxBundles) + " are the most",
                     "make several groups"};
  }
  for (std::size_t i = 0; i < spec.bundles.size(); ++i) {
    const BundleDemand& bundle = spec.bundles[i];
    const std::string of = "bundle " + std::to_string(i) + ": ";
    if (!is_count_of_cpus(bundle.cpu_e4))
      return ErrorInfo{ErrorCode::kBadInput, what, of + cpus_wrong(bundle.cpu_e4), todo};
    if (!is_count_of_gpus(bundle.gpu_e4))
      return ErrorInfo{ErrorCode::kBadInput, what, of + gpus_wrong(bundle.gpu_e4), todo};
    if (const std::string wrong = wrong_about(bundle.other); !wrong.empty())
      return ErrorInfo{ErrorCode::kBadInput, what, of + wrong, todo};
    if (bundle.cpu_e4 == 0 && bundle.gpu_e4 == 0 && bundle.other.amounts.empty())
      return ErrorInfo{ErrorCode::kBadInput, what, of + "it is empty", todo};
  }
  return std::nullopt;
}

std::optional<ErrorInfo> check_spec(const ActorSpec& spec) {
  const std::string what = "cannot spawn " + clipped(spec.type.substr(0, kMaxNameBytes));
  if (spec.payload.size() > kMaxPayloadBytes) {
    return too_long(what, "what its constructor is given", spec.payload.size(), kMaxPayloadBytes,
                    "pass less to the constructor, and the rest by a call");
  }
  if (spec.type.size() > kMaxNameBytes)
    return too_long(what, "its class's name", spec.type.size(), kMaxNameBytes, "choose a shorter name");
  if (!is_count_of_cpus(spec.demand.cpu_e4))
    return ErrorInfo{ErrorCode::kBadInput, what, cpus_wrong(spec.demand.cpu_e4), "ask for what a node has"};
  if (!is_count_of_gpus(spec.demand.gpu_e4))
    return ErrorInfo{ErrorCode::kBadInput, what, gpus_wrong(spec.demand.gpu_e4), "ask for what a node has"};
  if (const std::string wrong = wrong_about(spec.demand.other); !wrong.empty())
    return ErrorInfo{ErrorCode::kBadInput, what, wrong, "ask for what a node has"};
  if (spec.demand.gpu_e4 > 0 && !spec.demand.isolated) {
    return ErrorInfo{ErrorCode::kBadInput, what, "it asks for a GPU and shares its process with others",
                     "GPUs are dealt to processes: spawn it with .isolated = true"};
  }
  if (spec.demand.bundle < -1 || (spec.demand.bundle >= 0 && !spec.demand.group) ||
      (spec.demand.group && spec.demand.affinity)) {
    return ErrorInfo{ErrorCode::kBadInput, what,
                     "it asks for a bundle of no placement group, or for a group and a node",
                     "give a group alone, or a group and one of its bundles"};
  }
  if (spec.max_restarts < -1 || spec.max_task_retries < -1) {
    return ErrorInfo{ErrorCode::kBadInput, what,
                     "max_restarts and max_task_retries are -1 (without end) or more",
                     "ask for 0 or more, or for -1"};
  }
  if (spec.is_restartable() && !spec.demand.isolated) {
    return ErrorInfo{ErrorCode::kBadInput, what, "it is to be restarted and shares its process with others",
                     "spawn it with .isolated = true"};
  }
  if (spec.detached && (spec.name.empty() || !spec.demand.isolated || spec.demand.group)) {
    return ErrorInfo{ErrorCode::kBadInput, what + " detached",
                     spec.demand.group   ? "it is in a placement group, which ends with the program"
                     : spec.name.empty() ? "it has no name, by which another program could find it"
                                         : "it shares its process with actors that end with the program",
                     "give it .name and .isolated = true, and no placement group"};
  }
  return std::nullopt;
}

std::optional<ErrorInfo> check_node(const NodeInfo& node) {
  const std::string what = "refused node " + to_string(node.id);
  if (!node.id) return ErrorInfo{ErrorCode::kBadInput, what, "it has no id", ""};
  for (const auto& [part, text] : {std::pair{"its name", &node.name}, std::pair{"its address", &node.address},
                                   std::pair{"its key", &node.public_key}}) {
    if (text->size() > kMaxNameBytes)
      return too_long(what, part, text->size(), kMaxNameBytes, "choose a shorter one");
  }
  if (!is_count_of_cpus(node.cpu_e4))
    return ErrorInfo{ErrorCode::kBadInput, what, cpus_wrong(node.cpu_e4), "start it with a number of CPUs"};
  if (const std::string wrong = wrong_about(node.other); !wrong.empty())
    return ErrorInfo{ErrorCode::kBadInput, what, wrong, "see --memory, --resource and --label"};
  if (node.gpus.size() > static_cast<std::size_t>(kMaxGpus)) {
    return ErrorInfo{ErrorCode::kBadInput, what,
                     std::to_string(node.gpus.size()) + " GPUs are more than " + std::to_string(kMaxGpus),
                     "start it with fewer"};
  }
  for (const std::string& gpu : node.gpus) {
    if (gpu.empty() || gpu.size() > kMaxNameBytes || gpu.find(',') != std::string::npos)
      return ErrorInfo{ErrorCode::kBadInput, what, "'" + gpu.substr(0, kMaxNameBytes) + "' names no GPU", ""};
  }
  return std::nullopt;
}

bool holds_what_it_asked(const ActorRecord& record) {
  return are_gpus_of(record.gpus, record.spec.demand.gpu_e4);
}

bool holds_what_it_asked(const SubmissionRecord& record) {
  return are_gpus_of(record.gpus, record.spec.gpu_e4);
}

std::optional<ErrorInfo> check_job_name(const std::string& name) {
  if (name.empty())
    return ErrorInfo{ErrorCode::kBadInput, "refused a job", "it has no name", "give it a name"};
  return check_name(name, "refused a job");
}

std::string clipped(std::string_view text) {
  if (text.size() <= kMaxReasonBytes) return std::string(text);
  return std::string(text.substr(0, kMaxReasonBytes)) + "...";
}

ErrorInfo clipped(const ErrorInfo& error) {
  return {error.code, clipped(error.what), clipped(error.why), clipped(error.todo)};
}

}  // namespace troupe::cluster
