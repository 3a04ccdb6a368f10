/// The arithmetic of reductions, elementwise: out[i] = a[i] op b[i]. The loops are compiled for the base
/// instruction set and for AVX2, chosen at run time; both give the same bits, since each element is computed
/// by itself and nothing is contracted or reassociated.
#pragma once

#include <cstddef>

#include "collectives/types.hpp"

namespace troupe::collectives {

/// out may be a or b exactly; otherwise the three do not overlap. `count` elements.
using CombineFn = void (*)(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count);
/// Divides in place, rounding to the dtype.
using DivideFn = void (*)(std::byte* values, std::size_t count, int divisor);
/// out[i] = in[i] * factor, rounding to the dtype. out may be in.
using ScaleFn = void (*)(std::byte* out, const std::byte* in, std::size_t count, double factor);

struct Kernel {
  CombineFn combine = nullptr;  ///< null: this dtype does not reduce by this op
  DivideFn divide = nullptr;    ///< null: nothing to divide by at the end
  ScaleFn scale = nullptr;      ///< null: inputs are added as they are
};

/// f32, f64, f16 and bf16 by sum, avg, product, min, max (NaN wins); i32 and i64 by sum, product, min, max
/// (wrapping around). f16 and bf16 are computed in f32 and rounded to nearest even at every node of the tree.
Kernel kernel_for(DType dtype, ReduceOp op);

}  // namespace troupe::collectives
