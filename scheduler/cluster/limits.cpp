#include "scheduler/cluster/limits.hpp"

namespace troupe::cluster {
namespace {

ErrorInfo too_long(const std::string& what, const std::string& part, std::size_t size, std::size_t most,
                   std::string todo) {
  return {ErrorCode::kLimit, what,
          part + " has " + std::to_string(size) + " bytes, and " + std::to_string(most) + " are the most",
          std::move(todo)};
}

std::string cpus_wrong(std::int64_t cpu_e4) {
  return format_cpus(cpu_e4) + " CPUs are not between 0 and " + format_cpus(kMaxCpu_e4);
}

bool is_count_of_cpus(std::int64_t cpu_e4) {
  return cpu_e4 >= 0 && cpu_e4 <= kMaxCpu_e4;
}

}  // namespace

std::optional<ErrorInfo> check_spec(const ActorSpec& spec) {
  const std::string what = "cannot spawn " + clipped(spec.type.substr(0, kMaxNameBytes));
  if (spec.payload.size() > kMaxPayloadBytes) {
    return too_long(what, "what its constructor is given", spec.payload.size(), kMaxPayloadBytes,
                    "pass less to the constructor, and the rest by a call");
  }
  if (spec.type.size() > kMaxNameBytes)
    return too_long(what, "its class's name", spec.type.size(), kMaxNameBytes, "choose a shorter name");
  if (spec.name.size() > kMaxNameBytes)
    return too_long(what, "its name", spec.name.size(), kMaxNameBytes, "choose a shorter name");
  if (!is_count_of_cpus(spec.demand.cpu_e4))
    return ErrorInfo{ErrorCode::kBadInput, what, cpus_wrong(spec.demand.cpu_e4), "ask for what a node has"};
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
  return std::nullopt;
}

std::optional<ErrorInfo> check_job_name(const std::string& name) {
  if (name.empty())
    return ErrorInfo{ErrorCode::kBadInput, "refused a job", "it has no name", "give it a name"};
  if (name.size() > kMaxNameBytes)
    return too_long("refused a job", "its name", name.size(), kMaxNameBytes, "choose a shorter name");
  return std::nullopt;
}

std::string clipped(std::string_view text) {
  if (text.size() <= kMaxReasonBytes) return std::string(text);
  return std::string(text.substr(0, kMaxReasonBytes)) + "...";
}

ErrorInfo clipped(const ErrorInfo& error) {
  return {error.code, clipped(error.what), clipped(error.why), clipped(error.todo)};
}

}  // namespace troupe::cluster
