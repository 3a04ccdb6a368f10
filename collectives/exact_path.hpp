/// Reductions in the fixed order over a transport that only moves bytes: exchange slices, sum on the tree,
/// collect the sums. Pure: the exchanges are the caller's, so it serves blocking and polled transports alike.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/native/float_mode.hpp"
#include "collectives/native/kernels.hpp"
#include "collectives/native/tree_sum.hpp"
#include "collectives/types.hpp"

namespace troupe::collectives {

/// One exchange of equal blocks with every rank (all_to_all: block r of `from` goes to rank r, block r of
/// `to` comes from it; all_gather and gather: `from` is one block).
struct Exchange {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t block = 0;  ///< elements
};

/// One reduction with the bits that the native backend gives: the same slices, tree and kernels.
///
///   all_to_all(slices());  sum();  all_gather(collect());  finish();     all_reduce
///   all_to_all(slices());  sum();  gather(collect());      finish();     reduce
///   all_to_all(slices());  sum();                                        reduce_scatter
///
/// Moves (n-1)/n (k S + S) bytes out of each of n ranks for partials of S bytes, k being the most that any
/// rank has: what a ring moves, with one partial. Keep the object, `partials` and `result` where they are
/// until the last step is done. Not thread-safe.
class ExactReduction {
 public:
  struct Options {
    int rank = 0;
    std::vector<LeafInterval> leaves;  ///< every rank's, adjacent, in rank order from 0
    DType dtype = DType::kFloat32;
    Reduction how;
    /// This rank's, one a canonical node of its leaves, left to right; not written.
    std::vector<const std::byte*> partials;
    std::size_t count = 0;  ///< elements of a partial
    /// Gets `count` elements (may be partials[0], or inside it); null on a rank that gets nothing.
    std::byte* result = nullptr;
    /// Part r of the result is rank r's alone: `result` gets count / ranks elements, which must divide.
    bool scattered = false;
    FloatMode float_mode = FloatMode::here();  ///< in which it is added up, by whichever thread
    /// Of the result `result` gets this part alone, on every rank one of its own.
    std::optional<Slice> part{};
  };

  /// REQUIRES: kernel_for(dtype, how.op) has a combine.
  explicit ExactReduction(Options options);

  /// For an all_to_all: this rank's partials, cut into slices of all ranks.
  Exchange slices();
  /// Adds up this rank's slice of everybody's partials.
  void sum();
  /// For an all_gather, or a gather to the ranks with a result.
  Exchange collect();
  /// Puts the result in place.
  void finish();

 private:
  using Bytes = std::unique_ptr<std::byte[]>;
  bool fits() const { return block_ * ranks_ == options_.count; }
  std::size_t slice_size(std::size_t rank) const;
  void pack();

  Options options_;
  std::size_t ranks_;
  std::size_t element_;  ///< bytes
  std::size_t block_;    ///< elements of a slice; the last ranks' may be shorter, or empty
  std::vector<std::size_t> partials_;
  std::size_t most_partials_ = 1;
  Kernel kernel_;
  Bytes packed_, received_, mine_, gathered_;
};

/// All steps in order, for a transport that blocks. `collect` is an all_gather or a gather.
void run_exact(ExactReduction& reduction, const std::function<void(const Exchange&)>& all_to_all,
               const std::function<void(const Exchange&)>& collect);

}  // namespace troupe::collectives
