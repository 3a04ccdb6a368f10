/// What is reduced, what is refused, and by whom.

#include <cmath>
#include <limits>

#include "collectives/nccl/group.hpp"

namespace troupe::collectives {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

template <class T>
bool has_value(double factor) {
  // 2^63 as a limit: the largest i64 is no double.
  const double beyond = std::ldexp(1.0, std::numeric_limits<T>::digits);
  const double lowest = std::numeric_limits<T>::is_signed ? -beyond : 0;
  return factor >= lowest && factor < beyond && std::floor(factor) == factor;
}

bool integer_has(DType dtype, double factor) {
  switch (dtype) {
    case DType::kInt8:
      return has_value<std::int8_t>(factor);
    case DType::kInt16:
      return has_value<std::int16_t>(factor);
    case DType::kInt32:
      return has_value<std::int32_t>(factor);
    case DType::kInt64:
      return has_value<std::int64_t>(factor);
    default:
      return has_value<std::uint8_t>(factor);
  }
}

}  // namespace

std::string nccl_refusal(DType dtype, const Reduction& how) {
  const std::string name(dtype_name(dtype));
  switch (how.op) {
    case ReduceOp::kAvg:
      return is_float(dtype) ? "" : "an average of " + name + " values is no " + name;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return is_float(dtype) ? "bitwise operations take integers or bool, not " + name : "";
    case ReduceOp::kPremulSum:
      if (dtype == DType::kBool) return "a bool cannot be multiplied by a factor";
      if (is_float(dtype) || integer_has(dtype, how.factor)) return {};
      return "the factor " + std::to_string(how.factor) + " is no " + name;
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return {};
  }
  return "there is no such operation";
}

namespace nccl {

bool nccl_reduces(DType dtype, ReduceOp op) {
  const bool known_dtype = dtype != DType::kInt16 && dtype != DType::kBool;
  const bool known_op = op != ReduceOp::kBand && op != ReduceOp::kBor && op != ReduceOp::kBxor;
  return known_dtype && known_op;
}

}  // namespace nccl
}  // namespace troupe::collectives
