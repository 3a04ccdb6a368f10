#include "collectives/native/kernels.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace troupe::collectives {
namespace {

// Elements: how a stored value becomes one to compute with, and back.

template <class T>
struct Plain {
  using Stored = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};

struct BFloat16 {
  using Stored = std::uint16_t;
  static float load(Stored bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  static Stored store(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<Stored>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
};

/// Conversions without a branch, so that they vectorise; after F. Giesen, "half to float done quick" (public
/// domain).
struct Float16 {
  using Stored = std::uint16_t;
  static float load(Stored bits) {
    const std::uint32_t magnitude = std::uint32_t{bits & 0x7fffU} << 13;
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
    const std::uint32_t special = magnitude >= 0x0f800000 ? 0x7f800000 : 0;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special |
                                std::uint32_t{bits & 0x8000U} << 16);
  }
  static Stored store(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffff;
    const std::uint32_t normal = (magnitude - (112U << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // Adding 0.5 lets the FPU round a subnormal at the right bit.
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
                                    std::bit_cast<std::uint32_t>(0.5F);
    const std::uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const std::uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    return static_cast<Stored>((magnitude >= 0x47800000 ? special : finite) | (bits >> 16 & 0x8000));
  }
};

// Operations. Integers wrap around, by way of their unsigned type.

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      return a * b;
    }
  }
};
template <class T>
bool is_nan(T value) {
  if constexpr (std::is_integral_v<T>) return false;
  return std::isnan(value);
}
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return is_nan(a) || a < b ? a : b;  // a NaN in b wins too: the comparison with it is false
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return is_nan(a) || a > b ? a : b;
  }
};

// `out` may be `a`: no element depends on another, which the compiler cannot see.
#if defined(__clang__)
#define TROUPE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TROUPE_INDEPENDENT _Pragma("GCC ivdep")
#endif

template <class Element, class Op>
[[gnu::always_inline]] inline void combine_loop(std::byte* out, const std::byte* a, const std::byte* b,
                                                std::size_t count) {
  using Stored = typename Element::Stored;
  auto* to = reinterpret_cast<Stored*>(out);
  const auto* left = reinterpret_cast<const Stored*>(a);
  const auto* right = reinterpret_cast<const Stored*>(b);
  TROUPE_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = Element::store(Op::apply(Element::load(left[i]), Element::load(right[i])));
  }
}

template <class Element>
[[gnu::always_inline]] inline void divide_loop(std::byte* values, std::size_t count, int divisor) {
  auto* at = reinterpret_cast<typename Element::Stored*>(values);
  const auto by = static_cast<decltype(Element::load(*at))>(divisor);
  TROUPE_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) at[i] = Element::store(Element::load(at[i]) / by);
}

#if defined(__x86_64__)
#define TROUPE_AVX2 [[gnu::target("avx2")]]
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#else
#define TROUPE_AVX2
bool has_avx2() {
  return false;
}
#endif

template <class Element, class Op>
void combine_base(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  combine_loop<Element, Op>(out, a, b, count);
}
template <class Element, class Op>
TROUPE_AVX2 void combine_avx2(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  combine_loop<Element, Op>(out, a, b, count);
}
template <class Element>
void divide_base(std::byte* values, std::size_t count, int divisor) {
  divide_loop<Element>(values, count, divisor);
}
template <class Element>
TROUPE_AVX2 void divide_avx2(std::byte* values, std::size_t count, int divisor) {
  divide_loop<Element>(values, count, divisor);
}

template <class Element, class Op>
CombineFn combine_of() {
  return has_avx2() ? combine_avx2<Element, Op> : combine_base<Element, Op>;
}

template <class Element>
Kernel kernel_of(ReduceOp op) {
  constexpr bool kInteger = std::is_integral_v<decltype(Element::load({}))>;
  switch (op) {
    case ReduceOp::kSum:
      return {combine_of<Element, Sum>(), nullptr};
    case ReduceOp::kProduct:
      return {combine_of<Element, Product>(), nullptr};
    case ReduceOp::kMin:
      return {combine_of<Element, Min>(), nullptr};
    case ReduceOp::kMax:
      return {combine_of<Element, Max>(), nullptr};
    case ReduceOp::kAvg:
      if constexpr (kInteger) return {};
      return {combine_of<Element, Sum>(), has_avx2() ? divide_avx2<Element> : divide_base<Element>};
    default:
      return {};
  }
}

}  // namespace

Kernel kernel_for(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat32:
      return kernel_of<Plain<float>>(op);
    case DType::kFloat64:
      return kernel_of<Plain<double>>(op);
    case DType::kInt32:
      return kernel_of<Plain<std::int32_t>>(op);
    case DType::kInt64:
      return kernel_of<Plain<std::int64_t>>(op);
    case DType::kFloat16:
      return kernel_of<Float16>(op);
    case DType::kBFloat16:
      return kernel_of<BFloat16>(op);
    default:
      return {};
  }
}

}  // namespace troupe::collectives
