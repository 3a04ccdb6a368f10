/// Combining a slice of every rank's partials in the order of the leaf tree: the launch, the program that it
/// follows, and one element's way through it. The kernel is in tree_fold.cu; fold_on_host runs the same code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/native/kernel_elements.hpp"

namespace troupe::collectives::nccl {

/// A rank has at most about 2 log2(leaves) partials, and a tree of 2^40 leaves is as deep as this.
inline constexpr int kMaxOwnPartials = 64;
inline constexpr int kMaxDepth = 40;

/// In the byte of a fold program: the source is a sum, of partials that were scaled.
inline constexpr std::uint8_t kSummedBit = 0x80;

/// What the fold of a tree does after each partial, left to right: program[i] times it combines the two
/// values last on the stack. REQUIRES: nodes partition [0, leaves).
std::vector<std::uint8_t> fold_program(const std::vector<LeafInterval>& nodes, int leaves);

/// One launch. All pointers are the device's; `out` may be one of `own`, and overlaps nothing else.
struct TreeFold {
  const std::byte* received = nullptr;  ///< the other ranks' partials, in order
  std::size_t stride = 0;               ///< bytes from one of them to the next
  const std::byte* own[kMaxOwnPartials] = {};
  int own_first = 0;  ///< how many of the others come before ours
  int own_count = 0;
  const std::uint8_t* program = nullptr;
  int sources = 0;  ///< partials in all
  std::byte* out = nullptr;
  std::size_t count = 0;  ///< elements
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int divisor = 1;    ///< of kAvg
  double factor = 1;  ///< of kPremulSum
};

TROUPE_HD const std::byte* source_of(const TreeFold& fold, int i) {
  if (i < fold.own_first) return fold.received + static_cast<std::size_t>(i) * fold.stride;
  if (i < fold.own_first + fold.own_count) return fold.own[i - fold.own_first];
  return fold.received + static_cast<std::size_t>(i - fold.own_count) * fold.stride;
}

/// `kWidth` elements that are read and written at once.
template <class Element, int kWidth>
struct alignas(sizeof(typename Element::Stored) * kWidth) Pack {
  typename Element::Stored at[kWidth];
};

/// Pack number `index` of the slice through the tree, two values becoming one by `Op`.
template <class Element, class Op, int kWidth>
TROUPE_HD void fold_pack(const TreeFold& fold, std::size_t index) {
  using P = Pack<Element, kWidth>;
  using Value = typename Element::Value;
  P stack[kMaxDepth];  // left siblings of what is being summed
  int top = 0;
  P sum{};
  for (int i = 0; i < fold.sources; ++i) {
    if (i > 0) stack[top++] = sum;
    sum = reinterpret_cast<const P*>(source_of(fold, i))[index];
    if constexpr (std::is_same_v<Op, kernel::Sum>) {
      if (fold.op == ReduceOp::kPremulSum && (fold.program[i] & kSummedBit) == 0) {
        const auto by = static_cast<Value>(fold.factor);
        for (int e = 0; e < kWidth; ++e) sum.at[e] = Element::scale(sum.at[e], by);
      }
    }
    for (int merges = fold.program[i] & ~kSummedBit; merges > 0; --merges) {
      const P& left = stack[--top];
      for (int e = 0; e < kWidth; ++e) sum.at[e] = Element::apply(Op{}, left.at[e], sum.at[e]);
    }
  }
  if constexpr (std::is_same_v<Op, kernel::Sum> && Element::kIsFloat) {
    if (fold.op == ReduceOp::kAvg) {
      const auto by = static_cast<Value>(fold.divisor);
      for (int e = 0; e < kWidth; ++e) sum.at[e] = Element::divide(sum.at[e], by);
    }
  }
  reinterpret_cast<P*>(fold.out)[index] = sum;
}

/// Calls body(Element{}, Op{}) for what `fold` folds.
template <class Body>
void with_fold(DType dtype, ReduceOp op, Body body) {
  kernel::with_element(dtype, [&]<class Element>(Element element) {
    kernel::with_op<Element>(op, [&](auto combine) { body(element, combine); });
  });
}

/// What the kernel does, on memory of the host: for tests without a GPU.
void fold_on_host(const TreeFold& fold);

}  // namespace troupe::collectives::nccl
