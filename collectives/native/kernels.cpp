#include "collectives/native/kernels.hpp"

#include <cmath>
#include <limits>

#include "collectives/native/kernel_loops.hpp"
#include "runtime/core/assert.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace troupe::collectives {
namespace {

#if defined(__x86_64__)
InstructionSet detect() {
  // Not by __builtin_cpu_supports, which knows F16C in GCC alone. The OS saves the wide registers of AVX2.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  if (!__builtin_cpu_supports("avx2") || !f16c) return InstructionSet::kBase;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? InstructionSet::kAvx512 : InstructionSet::kAvx2;
}
#else
InstructionSet detect() {
  return InstructionSet::kBase;
}
#endif

/// Whether T has `factor` exactly. The bounds are powers of two, which a double has, too.
template <class T>
bool is_one_of(double factor) {
  const double below = std::ldexp(1.0, std::numeric_limits<T>::digits);
  const double least = std::is_signed_v<T> ? -below : 0.0;
  return factor >= least && factor < below && std::trunc(factor) == factor;
}

}  // namespace

std::string_view instruction_set_name(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBase:
      return "base";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
  }
  return "?";
}

InstructionSet best_instruction_set() {
  static const InstructionSet best = detect();
  return best;
}

Kernel kernel_for(DType dtype, ReduceOp op) {
  return kernel_for(dtype, op, best_instruction_set());
}

Kernel kernel_for(DType dtype, ReduceOp op, InstructionSet set) {
  TROUPE_ASSERT(set <= best_instruction_set(), "the processor has the instructions it is told to use");
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return kernel::avx512_kernel(dtype, op);
  if (set == InstructionSet::kAvx2) return kernel::avx2_kernel(dtype, op);
#endif
  return kernel::base_kernel(dtype, op);
}

std::string why_not(DType dtype, ReduceOp op) {
  const std::string name(dtype_name(dtype));
  switch (op) {
    case ReduceOp::kAvg:
      if (dtype == DType::kBool) return "bool values have no average";
      if (!is_float(dtype) && !is_complex(dtype))
        return "an average of " + name + " values is not an integer";
      return {};
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      if (is_float(dtype) || is_complex(dtype))
        return "bitwise operations take integers or bool, and not " + name + " values";
      return {};
    case ReduceOp::kPremulSum:
      if (dtype == DType::kBool) return "a bool cannot be multiplied by a factor";
      return {};
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return is_complex(dtype) ? "complex numbers have no order" : std::string();
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return {};
  }
  return "no such operation";
}

bool factor_fits(DType dtype, double factor) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      return true;
    case DType::kComplex64:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16: {
      if (!std::isfinite(factor)) return true;
      // The largest double that rounds to a finite float is below half a unit beyond the largest float.
      if (std::abs(factor) >= 0x1.ffffffp127) return false;
      return factor == 0 || static_cast<float>(factor) != 0;
    }
    case DType::kInt8:
      return is_one_of<std::int8_t>(factor);
    case DType::kInt16:
      return is_one_of<std::int16_t>(factor);
    case DType::kInt32:
      return is_one_of<std::int32_t>(factor);
    case DType::kInt64:
      return is_one_of<std::int64_t>(factor);
    case DType::kUInt8:
      return is_one_of<std::uint8_t>(factor);
    case DType::kUInt16:
      return is_one_of<std::uint16_t>(factor);
    case DType::kUInt32:
      return is_one_of<std::uint32_t>(factor);
    case DType::kUInt64:
      return is_one_of<std::uint64_t>(factor);
    case DType::kBool:
      return false;
  }
  return false;
}

}  // namespace troupe::collectives
