#include "collectives/nccl/call.hpp"

#include <bit>

namespace troupe::collectives::nccl {
namespace {

const char* kind_name(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduceTree:
      return "all_reduce_tree";
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kReduce:
      return "reduce";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kGather:
      return "gather";
    case CallKind::kScatter:
      return "scatter";
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kMessages:
      return "messages";
  }
  return "an operation that does not exist";
}

bool reduces(CallKind kind) {
  return kind == CallKind::kAllReduceTree || kind == CallKind::kAllReduce || kind == CallKind::kReduce ||
         kind == CallKind::kReduceScatter;
}

bool has_root(CallKind kind) {
  return kind == CallKind::kReduce || kind == CallKind::kBroadcast || kind == CallKind::kGather ||
         kind == CallKind::kScatter;
}

}  // namespace

std::string to_string(const Call& call) {
  std::string text = kind_name(call.kind);
  const std::string number = " #" + std::to_string(call.sequence);
  if (call.kind == CallKind::kBarrier) return text + "()" + number;
  if (call.kind == CallKind::kMessages) return std::to_string(call.count) + " " + text + number;
  text += "(";
  if (reduces(call.kind)) {
    text += std::string(reduce_op_name(call.how.op)) + (call.how.exact ? ", exact, " : ", any order, ");
  }
  text += std::to_string(call.count) + " x " + std::string(dtype_name(call.dtype));
  if (has_root(call.kind)) text += ", root " + std::to_string(call.root);
  if (call.kind == CallKind::kAllReduceTree) text += ", buffer " + std::to_string(call.root);
  return text + ")" + number;
}

CallWords encode(const Call& call) {
  const auto low = static_cast<std::uint64_t>(call.kind) | static_cast<std::uint64_t>(call.dtype) << 8 |
                   static_cast<std::uint64_t>(call.how.op) << 16 |
                   static_cast<std::uint64_t>(call.how.exact) << 24 |
                   static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.root)) << 32;
  return {low, call.count, call.sequence, std::bit_cast<std::uint64_t>(call.how.factor)};
}

std::string words_to_string(const CallWords& words) {
  Call call{.kind = static_cast<CallKind>(words[0] & 0xff),
            .dtype = static_cast<DType>(words[0] >> 8 & 0xff),
            .how = Reduction(static_cast<ReduceOp>(words[0] >> 16 & 0xff), (words[0] >> 24 & 1) != 0),
            .root = static_cast<std::int32_t>(words[0] >> 32),
            .count = words[1],
            .sequence = words[2]};
  return to_string(call);
}

}  // namespace troupe::collectives::nccl
