/// Sums slices of all partials in the order of the leaf tree.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/native/kernels.hpp"
#include "collectives/native/ring.hpp"

namespace troupe::collectives {

/// A slice as its owner sees it.
struct Slice {
  std::size_t begin = 0;  ///< elements
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

/// The slice of `owner` among `owners` of `count` elements: nearly equal, cut at cache lines.
Slice slice_of(std::size_t count, std::size_t element_bytes, int owner, int owners);

/// The additions of one tree over given partials, and room for what is between them. Not thread-safe.
class TreeSum {
 public:
  /// `nodes`: the partials, left to right, that partition [0, leaves).
  TreeSum(const std::vector<LeafInterval>& nodes, int leaves);

  /// Combines `count` elements of sources (one a node) and stores the result to every target. A source may be
  /// a target. Each source is read once from memory and each target written once: the work goes in blocks
  /// that fit the first-level cache. Where the kernel scales, every source is multiplied by `factor`, in its
  /// dtype, before it is added.
  void run(const Kernel& kernel, std::span<const std::byte* const> sources,
           std::span<std::byte* const> targets, std::size_t count, std::size_t element_bytes,
           double factor = 1);

  int leaves() const { return leaves_; }

  /// Small, so that it is still in the first-level cache when it is stored to the other targets.
  struct alignas(kCacheLine) Block {
    static constexpr std::size_t kBytes = 512;
    std::byte bytes[kBytes];
  };

 private:
  void block(const Kernel& kernel, std::span<std::byte* const> targets, std::size_t at, std::size_t bytes,
             std::size_t element_bytes, double factor);

  int leaves_;
  std::vector<FoldStep> steps_;
  std::vector<Block> between_;             ///< one a node, for sums inside the tree
  std::vector<const std::byte*> current_;  ///< where each node's block is at the moment
};

}  // namespace troupe::collectives
