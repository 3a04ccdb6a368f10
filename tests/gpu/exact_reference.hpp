/// What an exact reduction gives, computed slot by slot from the definition of the tree, and inputs for it:
/// for tests. Include it where nothing is contracted (-ffp-contract=off).
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/element_ops.hpp"

namespace troupe::collectives::testing {

using Bytes = std::vector<std::byte>;

inline constexpr DType kAllTypes[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                      DType::kInt8,    DType::kInt16,   DType::kInt32,   DType::kInt64,
                                      DType::kUInt8,   DType::kBool};
inline constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct,
                                       ReduceOp::kMin, ReduceOp::kMax,  ReduceOp::kBand,
                                       ReduceOp::kBor, ReduceOp::kBxor, ReduceOp::kPremulSum};

/// Values whose sums round, of every dtype, none of them NaN or 0. `wild`: random bits.
inline Bytes values(DType dtype, std::size_t count, std::uint64_t seed, bool wild = false) {
  SeededRandom random(seed);
  Bytes bytes(count * element_size(dtype));
  if (wild) {
    random.fill(bytes);
    return bytes;
  }
  kernel::with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    for (std::size_t i = 0; i < count; ++i) {
      typename Element::Stored stored;
      if constexpr (std::is_floating_point_v<Value>) {
        stored = Element::store(static_cast<Value>(random.uniform() * 8 - 4 + 0x1p-9));
      } else if constexpr (std::is_same_v<Element, kernel::Bool>) {
        stored = random.uniform() < 0.7;
      } else {
        stored = static_cast<Value>(static_cast<std::int64_t>(random.uniform() * 0x1p40));
      }
      std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
    }
  });
  return bytes;
}

/// The tree, slot by slot, as leaf_tree.hpp defines it.
inline Bytes expected(DType dtype, const Reduction& how, std::vector<Bytes> slots,
                      const std::vector<LeafInterval>& nodes, int leaves) {
  kernel::with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    using Stored = typename Element::Stored;
    const auto at = [](Bytes& slot, std::size_t i) { return reinterpret_cast<Stored*>(slot.data()) + i; };
    const std::size_t count = slots[0].size() / sizeof(Stored);
    for (std::size_t i = 0; i < count; ++i) {
      if (how.op == ReduceOp::kPremulSum) {
        for (Bytes& slot : slots) *at(slot, i) = testing::scale<Element>(*at(slot, i), how.factor);
      }
      for (const FoldStep& step : fold_plan(nodes, leaves)) {
        Stored* into = at(slots[static_cast<std::size_t>(step.into)], i);
        *into = testing::combine<Element>(how.op, *into, *at(slots[static_cast<std::size_t>(step.from)], i));
      }
      if (how.op == ReduceOp::kAvg) *at(slots[0], i) = testing::divide<Element>(*at(slots[0], i), leaves);
    }
  });
  return slots[0];
}

inline std::vector<LeafInterval> one_a_rank(int ranks) {
  std::vector<LeafInterval> nodes;
  for (int r = 0; r < ranks; ++r) nodes.push_back({r, r + 1});
  return nodes;
}

inline std::vector<Bytes> inputs(DType dtype, std::size_t count, int ranks, bool wild = false) {
  std::vector<Bytes> all;
  for (int r = 0; r < ranks; ++r)
    all.push_back(values(dtype, count, static_cast<std::uint64_t>(r) + 17, wild));
  return all;
}

inline Reduction reduction(ReduceOp op, bool exact) {
  return op == ReduceOp::kPremulSum ? Reduction::premul_sum(3, exact) : Reduction(op, exact);
}

}  // namespace troupe::collectives::testing
