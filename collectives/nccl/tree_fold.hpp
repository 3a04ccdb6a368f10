/// Combining a slice of every rank's partials in the order of the leaf tree: the launch, the program that it
/// follows, and one element's way through it. The kernel is in tree_fold.cu; tests run the same code on the
/// host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/nccl/fold_node.hpp"

namespace troupe::collectives::nccl {

/// A rank has at most about 2 log2(leaves) partials, and a tree of 2^40 leaves is as deep as this.
inline constexpr int kMaxOwnPartials = 64;
inline constexpr int kMaxDepth = 40;

/// In the byte of a fold program: the source is a sum, of partials that were scaled.
inline constexpr std::uint8_t kSummedBit = 0x80;

/// What the fold of a tree does after each partial, left to right: program[i] times it combines the two
/// values last on the stack. REQUIRES: nodes partition [0, leaves).
std::vector<std::uint8_t> fold_program(const std::vector<LeafInterval>& nodes, int leaves);

/// How many values a program has on its stack at most, but for the one that is being summed.
int fold_depth(const std::vector<std::uint8_t>& program);

/// One launch. All pointers are the device's; `out` may be one of `own`, and overlaps nothing else.
struct TreeFold {
  const std::byte* received = nullptr;  ///< the other ranks' partials, in order
  std::size_t stride = 0;               ///< bytes from one of them to the next
  const std::byte* own[kMaxOwnPartials] = {};
  int own_first = 0;  ///< how many of the others come before ours
  int own_count = 0;
  const std::uint8_t* program = nullptr;
  int depth = kMaxDepth;  ///< values that wait on the stack, at most: fold_depth of the program
  int sources = 0;        ///< partials in all
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

/// How a launch is cut: of each tile a thread has kFoldPacks packs of 16 bytes, whose loads are in flight
/// together, with those of the next source. Neighbours have neighbouring packs.
inline constexpr int kFoldThreads = 256;
inline constexpr int kFoldPacks = 2;
inline constexpr std::size_t kPackBytes = 16;  ///< the widest load
template <class Element>
inline constexpr int kPackWidth = kPackBytes / sizeof(typename Element::Stored);
/// Pack number `j` of a thread.
TROUPE_HD constexpr std::size_t pack_of(std::size_t tile, int j, int thread) {
  return (tile * kFoldPacks + static_cast<std::size_t>(j)) * kFoldThreads + static_cast<std::size_t>(thread);
}
template <class Element>
std::size_t tiles_of(std::size_t count) {
  constexpr std::size_t kTile = std::size_t{kFoldThreads} * kFoldPacks * kPackWidth<Element>;
  return (count + kTile - 1) / kTile;
}

/// What a thread has of one source.
template <class Element>
struct Row {
  static constexpr int kUnits = kPackBytes / sizeof(Unit<Element>);
  struct alignas(kPackBytes) Pack {
    Unit<Element> at[kUnits];
  } packs[kFoldPacks];
};

TROUPE_HD bool is_aligned(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kPackBytes == 0;
}

/// Element by element where memory is not aligned to packs, and at the end of the slice.
template <class Element>
TROUPE_HD void load_row(Row<Element>& row, const std::byte* from, std::size_t count, std::size_t tile,
                        int thread) {
  using Stored = typename Element::Stored;
  constexpr std::size_t kWidth = kPackWidth<Element>;
  for (int j = 0; j < kFoldPacks; ++j) {
    const std::size_t pack = pack_of(tile, j, thread), first = pack * kWidth;
    if (is_aligned(from) && first + kWidth <= count) {
      row.packs[j] = reinterpret_cast<const typename Row<Element>::Pack*>(from)[pack];
      continue;
    }
    std::size_t at = first;
    for (auto& unit : row.packs[j].at) {
      unit = {};
      for (int lane = 0; lane < kLanes<Element>; ++lane, ++at) {
        if (at < count) unit = with_lane<Element>(unit, lane, reinterpret_cast<const Stored*>(from)[at]);
      }
    }
  }
}

template <class Element>
TROUPE_HD void store_row(const Row<Element>& row, std::byte* to, std::size_t count, std::size_t tile,
                         int thread) {
  using Stored = typename Element::Stored;
  constexpr std::size_t kWidth = kPackWidth<Element>;
  for (int j = 0; j < kFoldPacks; ++j) {
    const std::size_t pack = pack_of(tile, j, thread), first = pack * kWidth;
    if (is_aligned(to) && first + kWidth <= count) {
      reinterpret_cast<typename Row<Element>::Pack*>(to)[pack] = row.packs[j];
      continue;
    }
    std::size_t at = first;
    for (const auto& unit : row.packs[j].at) {
      for (int lane = 0; lane < kLanes<Element>; ++lane, ++at) {
        if (at < count) reinterpret_cast<Stored*>(to)[at] = lane_of<Element>(unit, lane);
      }
    }
  }
}

/// Every element of a row becomes change(element).
template <class Element, class Change>
TROUPE_HD void change_row(Row<Element>& row, Change change) {
  for (auto& pack : row.packs) {
    for (auto& unit : pack.at) {
      Unit<Element> changed{};
      for (int lane = 0; lane < kLanes<Element>; ++lane)
        changed = with_lane<Element>(changed, lane, change(lane_of<Element>(unit, lane)));
      unit = changed;
    }
  }
}

/// The left siblings of what is being summed. A shallow stack stays in registers, since no index of it is
/// computed: pushing and popping moves all of it.
inline constexpr int kShallowDepth = 4;
template <class Value, int kDepth>
struct FoldStack {
  TROUPE_HD void push(const Value& value) {
    if constexpr (kDepth <= kShallowDepth) {
      for (int i = kDepth - 1; i > 0; --i) at[i] = at[i - 1];
      at[0] = value;
    } else {
      at[top++] = value;
    }
  }
  TROUPE_HD Value pop() {
    if constexpr (kDepth <= kShallowDepth) {
      const Value value = at[0];
      for (int i = 0; i + 1 < kDepth; ++i) at[i] = at[i + 1];
      return value;
    } else {
      return at[--top];
    }
  }
  Value at[kDepth]{};
  int top = 0;
};

/// A thread's part of a tile through the tree, two values becoming one by `Op`.
template <class Element, class Op, int kDepth>
TROUPE_HD void fold_tile(const TreeFold& fold, std::size_t tile, int thread) {
  using Stored = typename Element::Stored;
  using Value = typename Element::Value;
  if (pack_of(tile, 0, thread) * kPackWidth<Element> >= fold.count) return;
  FoldStack<Row<Element>, kDepth> stack;
  Row<Element> sum{}, next{};
  load_row<Element>(next, source_of(fold, 0), fold.count, tile, thread);
  for (int i = 0; i < fold.sources; ++i) {
    if (i > 0) stack.push(sum);
    sum = next;
    if (i + 1 < fold.sources) load_row<Element>(next, source_of(fold, i + 1), fold.count, tile, thread);
    if constexpr (std::is_same_v<Op, kernel::Sum>) {
      if (fold.op == ReduceOp::kPremulSum && (fold.program[i] & kSummedBit) == 0) {
        const auto by = static_cast<Value>(fold.factor);
        change_row<Element>(sum, [by](Stored element) { return Element::scale(element, by); });
      }
    }
    for (int merges = fold.program[i] & ~kSummedBit; merges > 0; --merges) {
      const Row<Element> left = stack.pop();
      for (int j = 0; j < kFoldPacks; ++j) {
        for (int u = 0; u < Row<Element>::kUnits; ++u) {
          sum.packs[j].at[u] = node_of<Element>(Op{}, left.packs[j].at[u], sum.packs[j].at[u]);
        }
      }
    }
  }
  if constexpr (std::is_same_v<Op, kernel::Sum> && Element::kIsFloat) {
    if (fold.op == ReduceOp::kAvg) {
      const auto by = static_cast<Value>(fold.divisor);
      change_row<Element>(sum, [by](Stored element) { return Element::divide(element, by); });
    }
  }
  store_row<Element>(sum, fold.out, fold.count, tile, thread);
}

/// Calls body(std::integral_constant) for the depth that a fold is compiled for.
template <class Body>
void with_depth(const TreeFold& fold, Body body) {
  if (fold.depth <= kShallowDepth) {
    body(std::integral_constant<int, kShallowDepth>{});
  } else {
    body(std::integral_constant<int, kMaxDepth>{});
  }
}

/// Calls body(Element{}, Op{}) for what `fold` folds.
template <class Body>
void with_fold(DType dtype, ReduceOp op, Body body) {
  kernel::with_element(dtype, [&]<class Element>(Element element) {
    kernel::with_op<Element>(op, [&](auto combine) { body(element, combine); });
  });
}

/// The kernel (tree_fold.cu), and the loading of its code. Both return a cudaError_t.
int launch_tree_fold(const TreeFold& fold, void* stream);
int load_tree_fold_kernels();

}  // namespace troupe::collectives::nccl
