/// Two values into one, at a node of the tree.
#pragma once

#include <cstdint>
#include <type_traits>

#include "collectives/native/kernel_elements.hpp"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace troupe::collectives::nccl {

/// What a thread holds: a word of several elements, or one element. Elements of 8 and 16 bits stay in words,
/// for which a GPU has registers.
template <class Element>
inline constexpr bool kInWords = sizeof(typename Element::Stored) < sizeof(std::uint32_t);
template <class Element>
using Unit = std::conditional_t<kInWords<Element>, std::uint32_t, typename Element::Stored>;
/// Elements of a unit.
template <class Element>
inline constexpr int kLanes = sizeof(Unit<Element>) / sizeof(typename Element::Stored);

/// `lane` of a unit, and the unit with that lane set. REQUIRES of `with_lane`: the lane is 0.
template <class Element>
TROUPE_HD typename Element::Stored lane_of(Unit<Element> unit, int lane) {
  using Stored = typename Element::Stored;
  if constexpr (kInWords<Element>) {
    return static_cast<Stored>(unit >> (8 * sizeof(Stored) * static_cast<unsigned>(lane)));
  } else {
    return unit;
  }
}
template <class Element>
TROUPE_HD Unit<Element> with_lane(Unit<Element> unit, int lane, typename Element::Stored value) {
  using Stored = typename Element::Stored;
  if constexpr (kInWords<Element>) {
    const std::uint32_t bits = static_cast<std::make_unsigned_t<Stored>>(value);
    return unit | bits << (8 * sizeof(Stored) * static_cast<unsigned>(lane));
  } else {
    return value;
  }
}

#if defined(__CUDACC__)
/// Both lanes at once, rounded once; a computed NaN is that of the CPU.
template <class Op>
__device__ __forceinline__ std::uint32_t node_of_halves(Op, std::uint32_t a, std::uint32_t b) {
  const __half2 x = kernel::bits_as<__half2>(a), y = kernel::bits_as<__half2>(b);
  __half2 both;
  if constexpr (std::is_same_v<Op, kernel::Sum>) {
    both = __hadd2_rn(x, y);
  } else {
    both = __hmul2_rn(x, y);
  }
  const auto lane = [](__half half) -> std::uint32_t {
    return __hisnan(half) ? kernel::Float16::kNan : __half_as_ushort(half);
  };
  return lane(__low2half(both)) | lane(__high2half(both)) << 16;
}
template <class Op>
__device__ __forceinline__ std::uint32_t node_of_bfloats(Op, std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 x = kernel::bits_as<__nv_bfloat162>(a), y = kernel::bits_as<__nv_bfloat162>(b);
  __nv_bfloat162 both;
  if constexpr (std::is_same_v<Op, kernel::Sum>) {
    both = __hadd2_rn(x, y);
  } else {
    const float2 u = __bfloat1622float2(x), v = __bfloat1622float2(y);
    both = __floats2bfloat162_rn(u.x * v.x, u.y * v.y);
  }
  const auto lane = [](__nv_bfloat16 half) -> std::uint32_t {
    return __hisnan(half) ? kernel::BFloat16::kNan : __bfloat16_as_ushort(half);
  };
  return lane(__low2bfloat16(both)) | lane(__high2bfloat16(both)) << 16;
}
#endif

/// What Element::apply gives, for each lane. Its sums and products of f16 and its sums of bf16 go by way of
/// f32, which holds more than twice their digits, so that they are rounded once in effect
/// (nccl_fold_test.cpp compares them with one rounding): as the GPU's own instructions round. A product of
/// bf16 that is subnormal is rounded twice, and so goes by way of f32 there, too.
template <class Element, class Op>
TROUPE_HD Unit<Element> node_of(Op op, Unit<Element> a, Unit<Element> b) {
#if defined(__CUDA_ARCH__)
  constexpr bool kRounds = std::is_same_v<Op, kernel::Sum> || std::is_same_v<Op, kernel::Product>;
  if constexpr (kRounds && std::is_same_v<Element, kernel::SmallFloat<kernel::Float16>>) {
    return node_of_halves(op, a, b);
  } else if constexpr (kRounds && std::is_same_v<Element, kernel::SmallFloat<kernel::BFloat16>>) {
    return node_of_bfloats(op, a, b);
  }
#endif
  Unit<Element> out{};
  for (int lane = 0; lane < kLanes<Element>; ++lane) {
    out = with_lane<Element>(out, lane,
                             Element::apply(op, lane_of<Element>(a, lane), lane_of<Element>(b, lane)));
  }
  return out;
}

}  // namespace troupe::collectives::nccl
