/// What the kernels have to compute, by the book and one element at a time: numbers are taken apart into
/// sign, exponent and digits, and nothing is shared with the code under test. Elements are their bits,
/// zero-extended.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/types.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives::testing {

using Bits = std::uint64_t;

/// A binary floating-point format.
struct Format {
  int digits;    ///< stored, without the leading one
  int exponent;  ///< bits
};
/// REQUIRES: dtype is a float.
Format format_of(DType dtype);
/// The value of the bits, exactly. NaN if they are one.
double decoded(DType dtype, Bits bits);
/// The nearest value of the dtype, ties to even; the NaN without sign and payload for a NaN.
Bits encoded(DType dtype, double value);

Bits combined(DType dtype, ReduceOp op, Bits a, Bits b);
Bits divided(DType dtype, Bits value, int divisor);
Bits scaled(DType dtype, Bits value, double factor);

/// Bits that are hard to get right: zeros, subnormals, infinities, NaNs of all kinds, ends of ranges, ties.
std::vector<Bits> special_values(DType dtype);
/// Any bits as often as, for a float, a value between 1/8 and 8 of either sign.
Bits random_value(DType dtype, Random& random);

Bits load(DType dtype, const std::byte* at, std::size_t index);
void store(DType dtype, std::byte* at, std::size_t index, Bits value);
/// The elements as an array.
std::vector<std::byte> packed(DType dtype, const std::vector<Bits>& values);

}  // namespace troupe::collectives::testing
