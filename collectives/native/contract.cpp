#include "collectives/native/contract.hpp"

#include <cstdio>

namespace troupe::collectives {
namespace {

std::string how(const Contract& contract) {
  std::string text(reduce_op_name(contract.op));
  if (contract.op == ReduceOp::kPremulSum) {
    char factor[40];
    std::snprintf(factor, sizeof factor, " by %.17g", contract.factor);
    text += factor;
  }
  return text + (contract.exact ? ", " : " in any order, ");
}

}  // namespace

std::string to_string(const Contract& contract) {
  std::string text = std::string(name_of(contract.kind)) + "(";
  if (contract.kind == OpKind::kBarrier) return text + ")";
  if (reduces(contract.kind)) text += how(contract);
  text += std::to_string(contract.count) + " x " + std::string(dtype_name(contract.dtype));
  const std::string index = std::to_string(contract.index);
  switch (contract.kind) {
    case OpKind::kAllReduceTree:
      return text + ", buffer " + index + ")";
    case OpKind::kReduce:
    case OpKind::kBroadcast:
    case OpKind::kGather:
    case OpKind::kScatter:
      return text + ", root " + index + ")";
    case OpKind::kSend:
      return text + ", to " + index + ")";
    case OpKind::kRecv:
      return text + ", from " + index + ")";
    default:
      return text + ")";
  }
}

ContractWords encode(const Contract& contract) {
  const auto low = static_cast<std::uint64_t>(contract.kind) | static_cast<std::uint64_t>(contract.op) << 8 |
                   static_cast<std::uint64_t>(contract.dtype) << 16 |
                   static_cast<std::uint64_t>(contract.exact) << 24 |
                   static_cast<std::uint64_t>(static_cast<std::uint32_t>(contract.index)) << 32;
  return {low, contract.count, std::bit_cast<std::uint64_t>(contract.factor)};
}

Result<Contract> decode_contract(const ContractWords& words) {
  const auto kind = words[0] & 0xff, op = words[0] >> 8 & 0xff, dtype = words[0] >> 16 & 0xff,
             exact = words[0] >> 24 & 0xff;
  if (kind > static_cast<unsigned>(OpKind::kRecv) || op > static_cast<unsigned>(ReduceOp::kPremulSum) ||
      dtype > static_cast<unsigned>(DType::kBool) || exact > 1) {
    return ErrorInfo{
        ErrorCode::kBadInput, "a rank called an operation that does not exist",
        "kind " + std::to_string(kind) + ", op " + std::to_string(op) + ", dtype " + std::to_string(dtype),
        "the ranks run different builds"};
  }
  return Contract{.kind = static_cast<OpKind>(kind),
                  .op = static_cast<ReduceOp>(op),
                  .dtype = static_cast<DType>(dtype),
                  .exact = exact == 1,
                  .index = static_cast<std::int32_t>(words[0] >> 32),
                  .count = words[1],
                  .factor = std::bit_cast<double>(words[2])};
}

}  // namespace troupe::collectives
