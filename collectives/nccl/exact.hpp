/// Reductions whose bits do not depend on NCCL's choices: ranks exchange slices of their partials, each adds
/// up its slice in tree order (tree_fold.hpp), and the sums go to whoever wants them. Bytes sent are a
/// ring's: (n-1)/n S for partials and (n-1)/n S for sums. NCCL only moves bytes, so every dtype and operation
/// that the native backend reduces is reduced here.
#pragma once

#include <memory>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/native/tree_sum.hpp"
#include "collectives/nccl/communicator.hpp"
#include "collectives/nccl/memory.hpp"
#include "collectives/nccl/tree_fold.hpp"

namespace troupe::collectives::nccl {

/// Which partials there are, and how they are folded.
class Plan {
 public:
  /// `intervals`: every rank's leaves. Copies the program to the device on `stream`, by way of `staging`,
  /// pinned memory of staging_bytes that lives until the stream has passed that.
  Plan(Caller caller, Stream stream, const std::vector<LeafInterval>& intervals, std::byte* staging);
  static std::size_t staging_bytes(const std::vector<LeafInterval>& intervals);

  int partials_of(int rank) const { return first_[rank + 1] - first_[rank]; }
  int first_of(int rank) const { return first_[rank]; }
  int partials() const { return first_.back(); }
  int leaves() const { return leaves_; }
  const std::uint8_t* program() const { return program_; }

 private:
  int leaves_ = 0;
  std::vector<int> first_;  ///< by rank, and one more
  Scratch memory_;
  const std::uint8_t* program_ = nullptr;
};

/// The exact path of one group. One thread; operations run in the order of the communicator's stream.
class ExactPath {
 public:
  /// `piece_bytes` bounds the memory: larger buffers go piece by piece, and a piece of S bytes with k
  /// partials takes k S. `staging`: as for Plan, of staging_bytes.
  ExactPath(Caller caller, int size, std::shared_ptr<Communicator> communicator,
            const std::vector<LeafInterval>& leaves, std::size_t piece_bytes, std::byte* staging);
  static std::size_t staging_bytes(const std::vector<LeafInterval>& leaves);

  /// What is reduced: this rank's partials, each of `count` elements.
  struct Input {
    std::vector<const std::byte*> partials;
    std::size_t count = 0;
    DType dtype = DType::kFloat32;
    Reduction how{};
  };
  const Plan& on_leaves() const { return on_leaves_; }
  const Plan& on_ranks() const { return on_ranks_; }

  void all_reduce(const Plan& plan, const Input& input, std::byte* out);
  void reduce(const Plan& plan, const Input& input, std::byte* out, int root);
  /// `input.count` is of the whole input: counts[r] elements for rank r, side by side.
  void reduce_scatter(const Plan& plan, const Input& input, const std::vector<std::size_t>& counts,
                      std::byte* out);

 private:
  /// Elements from the start of a partial, a rank.
  using Slices = std::vector<Slice>;
  template <class Body>
  void by_pieces(std::size_t count, const Input& input, Body body);
  Slices slices_of(std::size_t begin, std::size_t end, std::size_t element_bytes) const;
  /// Puts the sum of this rank's slice to `out` (null: to scratch memory, for a while); returns where it is.
  std::byte* sum_slice(const Plan& plan, const Input& input, const Slices& slices, std::byte* out);
  void exchange(const Plan& plan, const Input& input, const Slices& slices, std::byte* received,
                std::size_t stride);

  Caller caller_;
  int size_;
  std::shared_ptr<Communicator> communicator_;
  std::size_t piece_bytes_;
  Plan on_leaves_, on_ranks_;
  Scratch scratch_;
};

}  // namespace troupe::collectives::nccl
