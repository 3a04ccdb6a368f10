#include "collectives/native/contract.hpp"

namespace troupe::collectives {

std::string to_string(const Contract& contract) {
  const std::string elements =
      std::to_string(contract.count) + " x " + std::string(dtype_name(contract.dtype));
  const std::string op(reduce_op_name(contract.op));
  switch (contract.kind) {
    case OpKind::kAllReduceTree:
      return "all_reduce_tree(" + op + ", " + elements + ", buffer " + std::to_string(contract.index) + ")";
    case OpKind::kAllReduce:
      return "all_reduce(" + op + ", " + elements + ")";
    case OpKind::kBroadcast:
      return "broadcast(" + elements + ", root " + std::to_string(contract.index) + ")";
    case OpKind::kBarrier:
      return "barrier()";
  }
  return "?";
}

ContractWords encode(const Contract& contract) {
  const auto low = static_cast<std::uint64_t>(contract.kind) | static_cast<std::uint64_t>(contract.op) << 8 |
                   static_cast<std::uint64_t>(contract.dtype) << 16 |
                   static_cast<std::uint64_t>(static_cast<std::uint32_t>(contract.index)) << 32;
  return {low, contract.count};
}

Result<Contract> decode_contract(const ContractWords& words) {
  const auto kind = words[0] & 0xff, op = words[0] >> 8 & 0xff, dtype = words[0] >> 16 & 0xff;
  if (kind > static_cast<unsigned>(OpKind::kBarrier) || op > static_cast<unsigned>(ReduceOp::kBxor) ||
      dtype > static_cast<unsigned>(DType::kBool) || (words[0] >> 24 & 0xff) != 0) {
    return ErrorInfo{
        ErrorCode::kBadInput, "a rank called an operation that does not exist",
        "kind " + std::to_string(kind) + ", op " + std::to_string(op) + ", dtype " + std::to_string(dtype),
        "the ranks run different builds"};
  }
  return Contract{.kind = static_cast<OpKind>(kind),
                  .op = static_cast<ReduceOp>(op),
                  .dtype = static_cast<DType>(dtype),
                  .index = static_cast<std::int32_t>(words[0] >> 32),
                  .count = words[1]};
}

}  // namespace troupe::collectives
