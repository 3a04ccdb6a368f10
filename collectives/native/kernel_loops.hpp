/// The loops over elements, and which of them make the kernel of a dtype and an operation.
///
/// An instruction set is a struct whose static functions are the three loops, compiled for it:
///   template <class Element, class Op> void combine(out, a, b, count);
///   template <class Element> void divide(values, count, divisor);
///   template <class Element> void scale(out, in, count, factor);
/// Its file says what it is compiled for by an attribute on these, not by a compiler flag: with a flag,
/// inline functions of other headers would be compiled for it too, and the linker might choose those for
/// everybody.
#pragma once

#include <cstddef>

#include "collectives/native/kernel_elements.hpp"
#include "collectives/native/kernels.hpp"

namespace troupe::collectives::kernel {

// `out` may be `a`: no element depends on another, which the compiler cannot see.
#if defined(__clang__)
#define TROUPE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TROUPE_INDEPENDENT _Pragma("GCC ivdep")
#endif

/// An element at any alignment, in memory that was written as another type.
template <class T>
struct [[gnu::packed, gnu::may_alias]] Loose {
  T value;
};

template <class Element>
auto* elements(std::byte* at) {
  return reinterpret_cast<Loose<typename Element::Stored>*>(at);
}
template <class Element>
const auto* elements(const std::byte* at) {
  return reinterpret_cast<const Loose<typename Element::Stored>*>(at);
}

template <class Element, class Op>
[[gnu::always_inline]] inline void combine_loop(std::byte* out, const std::byte* a, const std::byte* b,
                                                std::size_t count) {
  auto* to = elements<Element>(out);
  const auto *left = elements<Element>(a), *right = elements<Element>(b);
  TROUPE_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) to[i].value = Element::apply(Op{}, left[i].value, right[i].value);
}

template <class Element>
[[gnu::always_inline]] inline void divide_loop(std::byte* values, std::size_t count, int divisor) {
  auto* at = elements<Element>(values);
  const auto by = static_cast<typename Element::Value>(divisor);
  TROUPE_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) at[i].value = Element::divide(at[i].value, by);
}

template <class Element>
[[gnu::always_inline]] inline void scale_loop(std::byte* out, const std::byte* in, std::size_t count,
                                              double factor) {
  auto* to = elements<Element>(out);
  const auto* from = elements<Element>(in);
  const auto by = static_cast<typename Element::Value>(factor);
  TROUPE_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) to[i].value = Element::scale(from[i].value, by);
}

/// The kernel of `Set`; all null for what is refused.
template <class Set>
Kernel kernel_of(DType dtype, ReduceOp op) {
  Kernel kernel;
  with_element(dtype, [&]<class Element>(Element) {
    with_op<Element>(op, [&]<class Op>(Op) { kernel.combine = Set::template combine<Element, Op>; });
    if constexpr (Element::kIsFloat) {
      if (op == ReduceOp::kAvg) kernel.divide = Set::template divide<Element>;
    }
    if constexpr (!std::is_same_v<Element, Bool>) {
      if (op == ReduceOp::kPremulSum) kernel.scale = Set::template scale<Element>;
    }
  });
  return kernel;
}

// One a file: kernels_base.cpp, kernels_avx2.cpp, kernels_avx512.cpp. The latter two exist on x86-64 alone.
Kernel base_kernel(DType dtype, ReduceOp op);
Kernel avx2_kernel(DType dtype, ReduceOp op);
Kernel avx512_kernel(DType dtype, ReduceOp op);

}  // namespace troupe::collectives::kernel
