/// What NCCL reduces by itself; what makes no sense at all is refused before (check_op.hpp).

#include "collectives/nccl/group.hpp"

namespace troupe::collectives::nccl {

bool nccl_reduces(DType dtype, ReduceOp op) {
  const bool known_dtype = dtype != DType::kInt16 && dtype != DType::kBool;
  const bool known_op = op != ReduceOp::kBand && op != ReduceOp::kBor && op != ReduceOp::kBxor;
  return known_dtype && known_op;
}

}  // namespace troupe::collectives::nccl
