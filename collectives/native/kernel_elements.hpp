/// What one element is and how two become one, for every dtype: `apply(op, a, b)`, `divide` and `scale`.
/// All without branches, so that loops over them vectorise, and none leaves a choice to the compiler or the
/// processor that shows in the result.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace troupe::collectives::kernel {

struct Sum {};
struct Product {};
struct Min {};
struct Max {};
struct And {};
struct Or {};
struct Xor {};

/// f32 and f64.
template <class T>
struct Float {
  using Stored = T;
  using Factor = T;

  static T apply(Sum, T a, T b) { return canonical(a + b); }
  static T apply(Product, T a, T b) { return canonical(a * b); }
  static T apply(Min, T a, T b) {
    const bool first = (a < b) | ((a == b) & negative(a));
    return either_nan(a, b, first ? a : b);
  }
  static T apply(Max, T a, T b) {
    const bool first = (a > b) | ((a == b) & negative(b));
    return either_nan(a, b, first ? a : b);
  }
  static T divide(T value, T divisor) { return canonical(value / divisor); }
  static T scale(T value, T factor) { return canonical(value * factor); }

 private:
  /// Of two NaNs x86 keeps the payload of the first operand, and compilers swap operands as they like.
  static T canonical(T value) { return either_nan(value, value, value); }
  static T either_nan(T a, T b, T otherwise) {
    return std::isunordered(a, b) ? std::numeric_limits<T>::quiet_NaN() : otherwise;
  }
  /// signbit, in arithmetic that vectors of f64 have in every instruction set.
  static bool negative(T value) { return std::copysign(T{1}, value) < 0; }
};

/// bf16: the upper half of an f32. (Here and below: signed integers, since vectors compare those at once.)
struct BFloat16 {
  static constexpr std::int16_t kInfinity = 0x7f80;
  static constexpr std::int16_t kNan = 0x7fc0;
  static float widen(std::int16_t bits) { return std::bit_cast<float>(std::int32_t{bits} << 16); }
  static std::int16_t narrow(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto rounded = static_cast<std::int32_t>(bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<std::int16_t>(std::isunordered(value, value) ? kNan : rounded);
  }
};

/// f16 in integer arithmetic, after F. Giesen, "half to float done quick" (public domain); the larger
/// instruction sets have conversions of their own.
struct Float16 {
  static constexpr std::int16_t kInfinity = 0x7c00;
  static constexpr std::int16_t kNan = 0x7e00;
  static constexpr std::int32_t kRebias = 112 << 23;  ///< from f16's exponents to f32's
  static float widen(std::int16_t bits) {
    const std::int32_t magnitude = (bits & 0x7fff) << 13;
    const std::int32_t normal = magnitude + kRebias;
    // The FPU normalises a subnormal, and never sees one: a thread that flushes those of f32 keeps these.
    const float subnormal = std::bit_cast<float>(normal + (1 << 23)) - 0x1p-14F;
    const std::int32_t finite = magnitude < 0x00800000 ? std::bit_cast<std::int32_t>(subnormal) : normal;
    const std::int32_t unsigned_bits = magnitude < 0x0f800000 ? finite : normal + kRebias;
    return std::bit_cast<float>(unsigned_bits | (std::int32_t{bits} & std::int32_t{-0x8000}) << 16);
  }
  static std::int16_t narrow(float value) {
    const auto bits = std::bit_cast<std::int32_t>(value);
    const std::int32_t magnitude = bits & 0x7fffffff;
    const std::int32_t normal = (magnitude - kRebias + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // Adding 0.5 lets the FPU round a subnormal at the right bit.
    const std::int32_t subnormal = std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
                                   std::bit_cast<std::int32_t>(0.5F);
    const std::int32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    const std::int32_t number = (magnitude < 0x47800000 ? finite : kInfinity) | (bits >> 16 & -0x8000);
    return static_cast<std::int16_t>(magnitude > 0x7f800000 ? kNan : number);
  }
};

/// The floats of 16 bits. A sum, product or quotient of two is rounded once in effect, since f32 holds more
/// than twice their digits (all but bf16 results that are subnormal). Minimum and maximum need no conversion:
/// with the magnitude of negative values flipped the bits compare as signed integers do, -0 below +0.
template <class Format>
struct SmallFloat {
  using Stored = std::int16_t;
  using Factor = float;

  static Stored apply(Sum, Stored a, Stored b) { return narrow(widen(a) + widen(b)); }
  static Stored apply(Product, Stored a, Stored b) { return narrow(widen(a) * widen(b)); }
  static Stored apply(Min, Stored a, Stored b) { return either_nan(a, b, ordered(a) < ordered(b) ? a : b); }
  static Stored apply(Max, Stored a, Stored b) { return either_nan(a, b, ordered(a) > ordered(b) ? a : b); }
  static Stored divide(Stored value, float divisor) { return narrow(widen(value) / divisor); }
  static Stored scale(Stored value, float factor) { return narrow(widen(value) * factor); }

 private:
  static float widen(Stored bits) { return Format::widen(bits); }
  static Stored narrow(float value) { return Format::narrow(value); }
  static Stored ordered(Stored bits) { return static_cast<Stored>(bits ^ ((bits >> 15) & 0x7fff)); }
  static Stored either_nan(Stored a, Stored b, Stored otherwise) {
    const Stored left = a & 0x7fff, right = b & 0x7fff;
    return (left > right ? left : right) > Format::kInfinity ? Format::kNan : otherwise;
  }
};

/// Integers wrap around, by way of an unsigned type that is not promoted to a signed one.
template <class T>
struct Integer {
  using Stored = T;
  using Factor = T;
  using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

  static T apply(Sum, T a, T b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); }
  static T apply(Product, T a, T b) { return static_cast<T>(static_cast<U>(a) * static_cast<U>(b)); }
  static T apply(Min, T a, T b) { return a < b ? a : b; }
  static T apply(Max, T a, T b) { return a > b ? a : b; }
  static T apply(And, T a, T b) { return static_cast<T>(a & b); }
  static T apply(Or, T a, T b) { return static_cast<T>(a | b); }
  static T apply(Xor, T a, T b) { return static_cast<T>(a ^ b); }
  static T scale(T value, T factor) { return apply(Product{}, value, factor); }
};

/// A byte, and not C++'s bool, which may not be anything but 0 or 1.
struct Bool {
  using Stored = std::uint8_t;
  static Stored apply(And, Stored a, Stored b) { return (a != 0) & (b != 0); }
  static Stored apply(Or, Stored a, Stored b) { return (a | b) != 0; }
  static Stored apply(Xor, Stored a, Stored b) { return (a != 0) ^ (b != 0); }
};

}  // namespace troupe::collectives::kernel
