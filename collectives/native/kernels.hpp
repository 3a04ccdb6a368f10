/// The arithmetic of reductions, elementwise: out[i] = a[i] op b[i].
///
/// Every dtype and operation has loops for the base instruction set, for AVX2 and for AVX-512, chosen at run
/// time. All give the same bits: each element is computed by itself, nothing is contracted or reassociated,
/// and what the processors leave open is decided here (docs/collectives/arithmetic.md):
/// - A NaN that is computed is the quiet NaN with no payload and no sign, whatever NaNs it came from.
/// - min and max are IEEE 754-2019 minimum and maximum: NaN if either is NaN, and -0 is less than +0.
/// - f16, bf16 and the two of 8 bits are computed in f32 and rounded to nearest, ties to even, at every node
/// of the tree. f16
///   keeps its subnormals even on a thread that flushes those of f32.
/// - Complex numbers are added and scaled by parts; a product is (ac - bd, ad + bc).
/// - Integers wrap around. A bool is true if its byte is not 0, and is stored as 0 or 1: sum, max and bor are
///   or; product, min and band are and; bxor is xor.
///
/// Thread-safety: all of this is pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "collectives/types.hpp"

namespace troupe::collectives {

/// out may be a or b exactly; otherwise the three do not overlap. `count` elements, at any alignment.
using CombineFn = void (*)(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count);
/// Divides in place, rounding to the dtype. REQUIRES: divisor >= 1.
using DivideFn = void (*)(std::byte* values, std::size_t count, int divisor);
/// Multiplies by the factor: converted to the dtype, or to f32 for f16 and bf16, where the product is
/// rounded. out may be in exactly. REQUIRES: factor_fits(dtype, factor).
using ScaleFn = void (*)(std::byte* out, const std::byte* in, std::size_t count, double factor);

struct Kernel {
  CombineFn combine = nullptr;  ///< null: this dtype does not reduce by this op
  DivideFn divide = nullptr;    ///< null: nothing to divide by at the end (all but avg)
  ScaleFn scale = nullptr;      ///< null: nothing to multiply by at the start (all but premul-sum)
};

/// Each has what the ones before it have. Processors other than x86-64 have the base alone.
enum class InstructionSet { kBase, kAvx2, kAvx512 };  // AVX2 with F16C; AVX-512 F, BW, DQ and VL
/// "base", "avx2" or "avx512".
std::string_view instruction_set_name(InstructionSet set);
/// The largest that this processor and its operating system have.
InstructionSet best_instruction_set();

/// The loops of the best instruction set; all null where why_not has a reason.
Kernel kernel_for(DType dtype, ReduceOp op);
/// Those of a given one, for tests. REQUIRES: set <= best_instruction_set().
Kernel kernel_for(DType dtype, ReduceOp op, InstructionSet set);

/// Why `dtype` does not reduce by `op`, in words: "an average of i32 values is not an integer". Empty if it
/// does. Refused are band, bor and bxor of floats, avg of integers and bool, premul-sum of
/// bool, and min, max and the bitwise ones of complex numbers.
std::string why_not(DType dtype, ReduceOp op);

/// Whether premul-sum can multiply `dtype` by `factor`. Integers: the dtype has the factor exactly. Floats:
/// what is finite stays so, and what is not 0 stays so, when converted; infinities and NaN fit. Bool: never.
bool factor_fits(DType dtype, double factor);

}  // namespace troupe::collectives
