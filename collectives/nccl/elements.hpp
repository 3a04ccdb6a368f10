/// What one element is and how two become one, on the GPU and on the CPU from the same source.
///
/// The bits are those of the native backend (docs/collectives.md, "Arithmetic"): f16 and bf16 are computed in
/// f32 and rounded to nearest even at every node; a NaN that is computed is the quiet one without payload;
/// minimum and maximum are IEEE 754-2019's (NaN if either is, -0 below +0); integers wrap around; a bool is
/// true if its byte is not 0. To be compiled without contraction (-fmad=false, -ffp-contract=off).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "collectives/types.hpp"

#if defined(__CUDACC__)
#define TROUPE_HD __host__ __device__ __forceinline__
#else
#define TROUPE_HD inline
#endif

namespace troupe::collectives::nccl {

template <class To, class From>
TROUPE_HD To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  memcpy(&out, &value, sizeof out);
  return out;
}

/// f32 and f64: how a value is computed with.
template <class T>
struct Float {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static constexpr Bits kSign = Bits{1} << (sizeof(T) * 8 - 1);
  static constexpr Bits kNan = sizeof(T) == 4 ? Bits{0x7fc00000} : static_cast<Bits>(0x7ff8000000000000ULL);

  static constexpr Bits kInfinity =
      sizeof(T) == 4 ? Bits{0x7f800000} : static_cast<Bits>(0x7ff0000000000000ULL);
  TROUPE_HD static bool is_nan(T value) { return (bits_as<Bits>(value) & ~kSign) > kInfinity; }
  TROUPE_HD static T canonical(T value) { return is_nan(value) ? bits_as<T>(kNan) : value; }
  TROUPE_HD static bool negative(T value) { return (bits_as<Bits>(value) & kSign) != 0; }
  TROUPE_HD static T smaller(T a, T b) {
    if (is_nan(a) || is_nan(b)) return bits_as<T>(kNan);
    return a < b || (a == b && negative(a)) ? a : b;
  }
  TROUPE_HD static T larger(T a, T b) {
    if (is_nan(a) || is_nan(b)) return bits_as<T>(kNan);
    return a > b || (a == b && negative(b)) ? a : b;
  }
};

/// An element of a dtype: `Stored` is what lies in memory, `Value` what is computed with.
template <class T>
struct FloatElement {
  using Stored = T;
  using Value = T;
  TROUPE_HD static T load(T stored) { return stored; }
  TROUPE_HD static T store(T value) { return Float<T>::canonical(value); }
};

/// bf16: the upper half of an f32.
struct BFloat16Element {
  using Stored = std::uint16_t;
  using Value = float;
  TROUPE_HD static float load(Stored bits) { return bits_as<float>(std::uint32_t{bits} << 16); }
  TROUPE_HD static Stored store(float value) {
    const auto bits = bits_as<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<Stored>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
};

/// f16, after F. Giesen, "half to float done quick" (public domain).
struct Float16Element {
  using Stored = std::uint16_t;
  using Value = float;
  TROUPE_HD static float load(Stored bits) {
    const std::uint32_t magnitude = bits & 0x7fffU;
    const auto subnormal = bits_as<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
    const std::uint32_t normal = (magnitude << 13) + (112U << 23);
    const std::uint32_t special = magnitude << 13 | 0x7f800000;
    const std::uint32_t finite = magnitude < 0x400 ? subnormal : normal;
    return bits_as<float>((magnitude < 0x7c00 ? finite : special) | std::uint32_t{bits & 0x8000U} << 16);
  }
  TROUPE_HD static Stored store(float value) {
    const auto bits = bits_as<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7e00;
    const std::uint32_t normal = (magnitude - (112U << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // Adding 0.5 rounds a subnormal at the right bit.
    const std::uint32_t subnormal =
        bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5F) - bits_as<std::uint32_t>(0.5F);
    const std::uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    return static_cast<Stored>((magnitude < 0x47800000 ? finite : 0x7c00) | (bits >> 16 & 0x8000));
  }
};

template <class T>
struct IntegerElement {
  using Stored = T;
  using Value = T;
  TROUPE_HD static T load(T stored) { return stored; }
  TROUPE_HD static T store(T value) { return value; }
};

struct BoolElement {
  using Stored = std::uint8_t;
  using Value = std::uint8_t;
  TROUPE_HD static Value load(Stored stored) { return stored != 0; }
  TROUPE_HD static Stored store(Value value) { return value; }
};

template <class Value>
TROUPE_HD Value combine_floats(ReduceOp op, Value a, Value b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return Float<Value>::smaller(a, b);
    case ReduceOp::kMax:
      return Float<Value>::larger(a, b);
    default:
      return a + b;
  }
}

template <class Value>
TROUPE_HD Value combine_integers(ReduceOp op, Value a, Value b) {
  using U = std::common_type_t<std::make_unsigned_t<Value>, unsigned>;  // not promoted to a signed type
  switch (op) {
    case ReduceOp::kProduct:
      return static_cast<Value>(static_cast<U>(a) * static_cast<U>(b));
    case ReduceOp::kMin:
      return a < b ? a : b;
    case ReduceOp::kMax:
      return a > b ? a : b;
    case ReduceOp::kBand:
      return static_cast<Value>(a & b);
    case ReduceOp::kBor:
      return static_cast<Value>(a | b);
    case ReduceOp::kBxor:
      return static_cast<Value>(a ^ b);
    default:
      return static_cast<Value>(static_cast<U>(a) + static_cast<U>(b));
  }
}

TROUPE_HD std::uint8_t combine_bools(ReduceOp op, std::uint8_t a, std::uint8_t b) {
  switch (op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return a & b;
    case ReduceOp::kBxor:
      return a ^ b;
    default:
      return a | b;
  }
}

/// One node of the tree: a op b, rounded to the dtype. REQUIRES: refusal(dtype of Element, op) is empty.
template <class Element>
TROUPE_HD typename Element::Stored combine(ReduceOp op, typename Element::Stored a,
                                           typename Element::Stored b) {
  using Value = typename Element::Value;
  const Value left = Element::load(a), right = Element::load(b);
  if constexpr (std::is_same_v<Element, BoolElement>) {
    return combine_bools(op, left, right);
  } else if constexpr (std::is_floating_point_v<Value>) {
    return Element::store(combine_floats(op, left, right));
  } else {
    return combine_integers(op, left, right);
  }
}

/// A value times `factor`, rounded to the dtype.
template <class Element>
TROUPE_HD typename Element::Stored scale(typename Element::Stored stored, double factor) {
  using Value = typename Element::Value;
  const auto value = Element::load(stored), by = static_cast<Value>(factor);
  if constexpr (std::is_floating_point_v<Value>) {
    return Element::store(value * by);
  } else {
    return combine_integers(ReduceOp::kProduct, value, by);
  }
}

/// A value over `divisor`, rounded to the dtype. Floats alone are divided.
template <class Element>
TROUPE_HD typename Element::Stored divide(typename Element::Stored stored, int divisor) {
  using Value = typename Element::Value;
  if constexpr (std::is_floating_point_v<Value>) {
    return Element::store(Element::load(stored) / static_cast<Value>(divisor));
  } else {
    return stored;
  }
}

/// Calls body(Element{}) for the element of `dtype`.
template <class Body>
auto with_element(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat64:
      return body(FloatElement<double>{});
    case DType::kFloat32:
      return body(FloatElement<float>{});
    case DType::kFloat16:
      return body(Float16Element{});
    case DType::kBFloat16:
      return body(BFloat16Element{});
    case DType::kInt8:
      return body(IntegerElement<std::int8_t>{});
    case DType::kInt16:
      return body(IntegerElement<std::int16_t>{});
    case DType::kInt32:
      return body(IntegerElement<std::int32_t>{});
    case DType::kInt64:
      return body(IntegerElement<std::int64_t>{});
    case DType::kUInt8:
      return body(IntegerElement<std::uint8_t>{});
    case DType::kBool:
      break;
  }
  return body(BoolElement{});
}

}  // namespace troupe::collectives::nccl
