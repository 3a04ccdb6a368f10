/// What one element is and how two become one, for every dtype, on the CPU and on the GPU from one source:
/// `apply(op, a, b)`, `divide` and `scale` on what lies in memory, and `load` and `store` to and from what is
/// computed with. All without branches, so that loops over them vectorise, and none leaves a choice to the
/// compiler or the processor that shows in the result. To be compiled without contraction (-fmad=false,
/// -ffp-contract=off).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "collectives/types.hpp"

#if defined(__CUDACC__)
#define TROUPE_HD __host__ __device__ __forceinline__
#else
#define TROUPE_HD inline
#endif

namespace troupe::collectives::kernel {

struct Sum {};
struct Product {};
struct Min {};
struct Max {};
struct And {};
struct Or {};
struct Xor {};

// What the standard library has for the host alone.
template <class To, class From>
TROUPE_HD To bits_as(From value) {
#if defined(__CUDA_ARCH__)
  To out;
  memcpy(&out, &value, sizeof out);
  return out;
#else
  return std::bit_cast<To>(value);
#endif
}
template <class T>
TROUPE_HD bool unordered(T a, T b) {
#if defined(__CUDA_ARCH__)
  return a != a || b != b;
#else
  return std::isunordered(a, b);
#endif
}
/// signbit, in arithmetic that vectors of f64 have in every instruction set.
template <class T>
TROUPE_HD bool negative(T value) {
#if defined(__CUDA_ARCH__)
  return signbit(value);
#else
  return std::copysign(T{1}, value) < 0;
#endif
}

/// f32 and f64.
template <class T>
struct Float {
  using Stored = T;
  using Value = T;
  static constexpr bool kIsFloat = true;
  static constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

  TROUPE_HD static T load(T stored) { return stored; }
  TROUPE_HD static T store(T value) { return canonical(value); }
  TROUPE_HD static T apply(Sum, T a, T b) { return canonical(a + b); }
  TROUPE_HD static T apply(Product, T a, T b) { return canonical(a * b); }
  TROUPE_HD static T apply(Min, T a, T b) {
    const bool first = (a < b) | ((a == b) & negative(a));
    return either_nan(a, b, first ? a : b);
  }
  TROUPE_HD static T apply(Max, T a, T b) {
    const bool first = (a > b) | ((a == b) & negative(b));
    return either_nan(a, b, first ? a : b);
  }
  TROUPE_HD static T divide(T value, T divisor) { return canonical(value / divisor); }
  TROUPE_HD static T scale(T value, T factor) { return canonical(value * factor); }

 private:
  /// Of two NaNs x86 keeps the payload of the first operand, and compilers swap operands as they like.
  TROUPE_HD static T canonical(T value) { return either_nan(value, value, value); }
  TROUPE_HD static T either_nan(T a, T b, T otherwise) {
    const T nan = kNan;
    return unordered(a, b) ? nan : otherwise;
  }
};

/// bf16: the upper half of an f32. (Here and below: signed integers, since vectors compare those at once.)
struct BFloat16 {
  static constexpr std::int16_t kInfinity = 0x7f80;
  static constexpr std::int16_t kNan = 0x7fc0;
  TROUPE_HD static float widen(std::int16_t bits) { return bits_as<float>(std::int32_t{bits} << 16); }
  TROUPE_HD static std::int16_t narrow(float value) {
    const auto bits = bits_as<std::uint32_t>(value);
    const auto rounded = static_cast<std::int32_t>(bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<std::int16_t>(unordered(value, value) ? kNan : rounded);
  }
};

/// f16 in integer arithmetic, after F. Giesen, "half to float done quick" (public domain); the larger
/// instruction sets have conversions of their own.
struct Float16 {
  static constexpr std::int16_t kInfinity = 0x7c00;
  static constexpr std::int16_t kNan = 0x7e00;
  static constexpr std::int32_t kRebias = 112 << 23;  ///< from f16's exponents to f32's
  TROUPE_HD static float widen(std::int16_t bits) {
    const std::int32_t magnitude = (bits & 0x7fff) << 13;
    const std::int32_t normal = magnitude + kRebias;
    // The FPU normalises a subnormal, and never sees one: a thread that flushes those of f32 keeps these.
    const float subnormal = bits_as<float>(normal + (1 << 23)) - 0x1p-14F;
    const std::int32_t finite = magnitude < 0x00800000 ? bits_as<std::int32_t>(subnormal) : normal;
    const std::int32_t unsigned_bits = magnitude < 0x0f800000 ? finite : normal + kRebias;
    return bits_as<float>(unsigned_bits | (std::int32_t{bits} & std::int32_t{-0x8000}) << 16);
  }
  TROUPE_HD static std::int16_t narrow(float value) {
    const auto bits = bits_as<std::int32_t>(value);
    const std::int32_t magnitude = bits & 0x7fffffff;
    const std::int32_t normal = (magnitude - kRebias + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // Adding 0.5 lets the FPU round a subnormal at the right bit.
    const std::int32_t subnormal =
        bits_as<std::int32_t>(bits_as<float>(magnitude) + 0.5F) - bits_as<std::int32_t>(0.5F);
    const std::int32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    const std::int32_t number = (magnitude < 0x47800000 ? finite : kInfinity) | (bits >> 16 & -0x8000);
    return static_cast<std::int16_t>(magnitude > 0x7f800000 ? kNan : number);
  }
};

/// The floats of 8 bits (OCP 8-bit floating point; PyTorch's float8_e4m3fn and float8_e5m2, whose rounding
/// and NaN these are). `kDigits`: stored. What is beyond the range is NaN, or infinity where there is one.
template <int kDigits, int kBias, std::int8_t kOverflow>
struct SmallFormat {
  static constexpr std::int8_t kNan = 0x7f;
  static constexpr std::int8_t kInfinity = kOverflow == kNan ? 0x7e : kOverflow;  ///< the last that is no NaN
  static constexpr std::int32_t kRebias = (127 - kBias) << 23;

  TROUPE_HD static float widen(std::int8_t bits) {
    const std::int32_t magnitude = bits & 0x7f;
    const std::int32_t digits = magnitude & ((1 << kDigits) - 1);
    constexpr float kLeast = least_value();
    const float subnormal = static_cast<float>(digits) * kLeast;
    const std::int32_t normal = (magnitude << (23 - kDigits)) + kRebias;
    std::int32_t wide = magnitude >> kDigits == 0 ? bits_as<std::int32_t>(subnormal) : normal;
    if (magnitude == kOverflow && kOverflow != kNan) wide = 0x7f800000;
    if (magnitude > kInfinity) wide = 0x7fc00000;
    return bits_as<float>(wide | (std::int32_t{bits} & std::int32_t{-0x80}) << 24);
  }
  TROUPE_HD static std::int8_t narrow(float value) {
    const auto bits = bits_as<std::int32_t>(value);
    const std::int32_t magnitude = bits & 0x7fffffff;
    constexpr int kShift = 23 - kDigits;
    const std::int32_t normal =
        (magnitude - kRebias + ((1 << (kShift - 1)) - 1) + (magnitude >> kShift & 1)) >> kShift;
    // Adding a number whose last digit is a subnormal's lets the FPU round at the right bit.
    constexpr std::int32_t kMagic = (127 - kBias + 23 - kDigits + 1) << 23;
    const std::int32_t subnormal =
        bits_as<std::int32_t>(bits_as<float>(magnitude) + bits_as<float>(kMagic)) - kMagic;
    const std::int32_t finite = magnitude < kRebias + (1 << 23) ? subnormal : normal;
    // The first that rounds to more than there is: the exponent after the last, or, with NaN in the last,
    // half a unit below NaN.
    const std::int32_t number = magnitude < 0x7f800000 && finite < kOverflow ? finite : kOverflow;
    const std::int32_t result = magnitude > 0x7f800000 ? kNan : number;
    // A computed NaN has no sign.
    const bool is_nan = result > kInfinity;
    return static_cast<std::int8_t>(is_nan ? std::int32_t{kNan} : result | (bits >> 24 & -0x80));
  }

 private:
  TROUPE_HD static constexpr float least_value() {
    float least = 1;
    for (int i = 1; i < kBias + kDigits; ++i) least /= 2;
    return least;
  }
};
using Float8E4M3 = SmallFormat<3, 7, 0x7f>;
using Float8E5M2 = SmallFormat<2, 15, 0x7c>;

/// The floats of 16 and 8 bits. A sum, product or quotient of two is rounded once in effect, since f32 holds
/// more than twice their digits (all but bf16 results that are subnormal). Minimum and maximum need no
/// conversion: with the magnitude of negative values flipped the bits compare as signed integers do, -0 below
/// +0.
template <class Format, class Bits = std::int16_t>
struct SmallFloat {
  using Stored = Bits;
  using Value = float;
  static constexpr bool kIsFloat = true;

  TROUPE_HD static float load(Stored bits) { return widen(bits); }
  TROUPE_HD static Stored store(float value) { return narrow(value); }
  TROUPE_HD static Stored apply(Sum, Stored a, Stored b) { return narrow(widen(a) + widen(b)); }
  TROUPE_HD static Stored apply(Product, Stored a, Stored b) { return narrow(widen(a) * widen(b)); }
  TROUPE_HD static Stored apply(Min, Stored a, Stored b) {
    return either_nan(a, b, ordered(a) < ordered(b) ? a : b);
  }
  TROUPE_HD static Stored apply(Max, Stored a, Stored b) {
    return either_nan(a, b, ordered(a) > ordered(b) ? a : b);
  }
  TROUPE_HD static Stored divide(Stored value, float divisor) { return narrow(widen(value) / divisor); }
  TROUPE_HD static Stored scale(Stored value, float factor) { return narrow(widen(value) * factor); }

 private:
  static constexpr Stored kMagnitude = std::numeric_limits<Stored>::max();
  TROUPE_HD static float widen(Stored bits) { return Format::widen(bits); }
  TROUPE_HD static Stored narrow(float value) { return Format::narrow(value); }
  TROUPE_HD static Stored ordered(Stored bits) {
    return static_cast<Stored>(bits ^ ((bits >> (8 * sizeof(Bits) - 1)) & kMagnitude));
  }
  TROUPE_HD static Stored either_nan(Stored a, Stored b, Stored otherwise) {
    const Stored left = a & kMagnitude, right = b & kMagnitude;
    return (left > right ? left : right) > Format::kInfinity ? Format::kNan : otherwise;
  }
};

/// Integers wrap around, by way of an unsigned type that is not promoted to a signed one.
template <class T>
struct Integer {
  using Stored = T;
  using Value = T;
  static constexpr bool kIsFloat = false;
  using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

  TROUPE_HD static T load(T stored) { return stored; }
  TROUPE_HD static T store(T value) { return value; }
  TROUPE_HD static T apply(Sum, T a, T b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); }
  TROUPE_HD static T apply(Product, T a, T b) {
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
  TROUPE_HD static T apply(Min, T a, T b) { return a < b ? a : b; }
  TROUPE_HD static T apply(Max, T a, T b) { return a > b ? a : b; }
  TROUPE_HD static T apply(And, T a, T b) { return static_cast<T>(a & b); }
  TROUPE_HD static T apply(Or, T a, T b) { return static_cast<T>(a | b); }
  TROUPE_HD static T apply(Xor, T a, T b) { return static_cast<T>(a ^ b); }
  TROUPE_HD static T scale(T value, T factor) { return apply(Product{}, value, factor); }
};

/// Keeps a product from being fused with a sum: GCC makes fmaddsub of complex products even where it is told
/// to contract nothing.
template <class T>
TROUPE_HD T rounded(T product) {
#if defined(__GNUC__) && !defined(__CUDA_ARCH__)
  asm("" : "+m"(product));
#endif
  return product;
}

/// A complex number, real part first: sums, means, products, and a real factor, by parts.
template <class T>
struct Complex {
  struct Stored {
    T real, imaginary;
  };
  using Value = T;
  using Part = Float<T>;
  static constexpr bool kIsFloat = true;

  TROUPE_HD static T load(Stored stored) { return stored.real; }
  TROUPE_HD static Stored store(T value) { return {value, T{0}}; }
  TROUPE_HD static Stored apply(Sum, Stored a, Stored b) {
    return {Part::apply(Sum{}, a.real, b.real), Part::apply(Sum{}, a.imaginary, b.imaginary)};
  }
  TROUPE_HD static Stored apply(Product, Stored a, Stored b) {
    return {Part::store(rounded(a.real * b.real) - rounded(a.imaginary * b.imaginary)),
            Part::store(rounded(a.real * b.imaginary) + rounded(a.imaginary * b.real))};
  }
  TROUPE_HD static Stored divide(Stored value, T divisor) {
    return {Part::divide(value.real, divisor), Part::divide(value.imaginary, divisor)};
  }
  TROUPE_HD static Stored scale(Stored value, T factor) {
    return {Part::scale(value.real, factor), Part::scale(value.imaginary, factor)};
  }
};
template <class Element>
inline constexpr bool is_complex_element = false;
template <class T>
inline constexpr bool is_complex_element<Complex<T>> = true;

/// A byte, and not C++'s bool, which may not be anything but 0 or 1.
struct Bool {
  using Stored = std::uint8_t;
  using Value = std::uint8_t;
  static constexpr bool kIsFloat = false;
  TROUPE_HD static Value load(Stored stored) { return stored != 0; }
  TROUPE_HD static Stored store(Value value) { return value != 0; }
  TROUPE_HD static Stored apply(And, Stored a, Stored b) { return (a != 0) & (b != 0); }
  TROUPE_HD static Stored apply(Or, Stored a, Stored b) { return (a | b) != 0; }
  TROUPE_HD static Stored apply(Xor, Stored a, Stored b) { return (a != 0) ^ (b != 0); }
};

/// Calls body(Element{}) for the element of `dtype`.
template <class Body>
auto with_element(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat64:
      return body(Float<double>{});
    case DType::kFloat32:
      return body(Float<float>{});
    case DType::kFloat16:
      return body(SmallFloat<Float16>{});
    case DType::kBFloat16:
      return body(SmallFloat<BFloat16>{});
    case DType::kInt8:
      return body(Integer<std::int8_t>{});
    case DType::kInt16:
      return body(Integer<std::int16_t>{});
    case DType::kInt32:
      return body(Integer<std::int32_t>{});
    case DType::kInt64:
      return body(Integer<std::int64_t>{});
    case DType::kUInt8:
      return body(Integer<std::uint8_t>{});
    case DType::kUInt16:
      return body(Integer<std::uint16_t>{});
    case DType::kUInt32:
      return body(Integer<std::uint32_t>{});
    case DType::kUInt64:
      return body(Integer<std::uint64_t>{});
    case DType::kFloat8E4M3:
      return body(SmallFloat<Float8E4M3, std::int8_t>{});
    case DType::kFloat8E5M2:
      return body(SmallFloat<Float8E5M2, std::int8_t>{});
    case DType::kComplex64:
      return body(Complex<float>{});
    case DType::kComplex128:
      return body(Complex<double>{});
    case DType::kBool:
      break;
  }
  return body(Bool{});
}

/// Calls body(Sum{}), or whatever combines two elements under `op`; not at all where the dtype does not
/// reduce by it.
template <class Element, class Body>
void with_op(ReduceOp op, Body body) {
  constexpr bool kBool = std::is_same_v<Element, Bool>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      if constexpr (!kBool) {
        if (op != ReduceOp::kAvg || Element::kIsFloat) body(Sum{});
      } else if (op == ReduceOp::kSum) {
        body(Or{});
      }
      return;
    case ReduceOp::kProduct:
      return body(std::conditional_t<kBool, And, Product>{});
    case ReduceOp::kMin:
      if constexpr (!is_complex_element<Element>) body(std::conditional_t<kBool, And, Min>{});
      return;
    case ReduceOp::kMax:
      if constexpr (!is_complex_element<Element>) body(std::conditional_t<kBool, Or, Max>{});
      return;
    default:
      break;
  }
  if constexpr (!Element::kIsFloat) {
    if (op == ReduceOp::kBand) body(And{});
    if (op == ReduceOp::kBor) body(Or{});
    if (op == ReduceOp::kBxor) body(Xor{});
  }
}

}  // namespace troupe::collectives::kernel
