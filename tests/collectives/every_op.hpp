/// Any collective as a value: its inputs, what it has to give, by definition, and how to call it. With it the
/// matrix of operation, dtype, reduction, count, root and place of buffers, which every backend and layout of
/// ranks has to pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives::testing {

using Bytes = std::vector<std::byte>;

/// Catch2's checks are for one thread; ranks that are threads throw.
inline void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

/// Those with equal parts.
inline constexpr OpKind kCollectives[] = {OpKind::kAllReduce,     OpKind::kReduce,   OpKind::kBroadcast,
                                          OpKind::kGather,        OpKind::kScatter,  OpKind::kAllGather,
                                          OpKind::kReduceScatter, OpKind::kAllToAll, OpKind::kBarrier};

struct OpSpec {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kFloat32;  ///< of reductions: none that is complex
  Reduction how{};
  std::size_t count = 0;  ///< of one part; of parts that differ, about the largest
  int root = 0;
  std::uint64_t seed = 0;
  int leaves = 0;  ///< of an all_reduce_tree: all of them
};
std::string to_string(const OpSpec& spec);

/// Whether input and output are one buffer.
bool one_buffer(const OpSpec& spec);

/// The input of `rank`, from the spec's seed.
Bytes input_of(const OpSpec& spec, int rank, int size);
/// Its output by the definition of the operation, one element at a time; none if it has no output.
std::optional<Bytes> output_of(const OpSpec& spec, int rank, int size);
/// The partial sums of a tree for a rank with these leaves.
std::vector<Bytes> partials_of(const OpSpec& spec, LeafInterval leaves);
/// Calls it. A rank without one of the buffers passes what nobody may look at. `like`: the buffers' device
/// and stream.
std::shared_ptr<Work> call(ProcessGroup& group, const OpSpec& spec, std::byte* input, std::byte* output,
                           const Buffer& like = {});

/// A call with its own buffers, made and checked: bit for bit, against one element at a time.
class Running {
 public:
  /// Where buffers are: in memory of the caller, anywhere in a line; in the group's (`arena`, from which it
  /// takes); or the smaller buffer inside the larger one, where that is allowed.
  enum class Where { kPrivate, kGroups, kInPlace };
  Running(ProcessGroup& group, const OpSpec& spec, Where where, std::span<std::byte>& arena);
  void launch();
  Work& work() { return *work_; }
  /// Throws unless the output has the right bits, and everything else still has what it had.
  void check() const;

 private:
  std::byte* memory(std::size_t bytes, bool groups, std::span<std::byte>& arena);
  void place(Where where, std::span<std::byte>& arena);

  ProcessGroup& group_;
  OpSpec spec_;
  std::vector<std::unique_ptr<std::byte[]>> own_;
  TreeBuffer tree_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::size_t input_bytes_ = 0;
  std::size_t output_bytes_ = 0;
  bool overlaps_ = false;
  std::shared_ptr<Work> work_;
};

/// Every reduction, exact, of every dtype that is no complex one; and every move of three dtypes: with counts
/// of none, one and about `most`, from and to every root.
std::vector<OpSpec> every_spec(int size, std::size_t most);
/// Every reduction that is not exact, of whole numbers, of dtypes that every library has.
std::vector<OpSpec> any_order_specs(int size);
/// Every operation on f32, with parts of about `count`.
std::vector<OpSpec> specs_of(int size, std::size_t count);
/// Trees of `leaves`, of every dtype and reduction, with up to `most` elements.
std::vector<OpSpec> tree_specs(int leaves, std::size_t most, std::uint64_t seed);

/// Runs them on a rank: some at once, waited for in any order, with buffers in `arena` and elsewhere. What is
/// in the specs is the same on all ranks, all else is each rank's own affair.
void run_specs(ProcessGroup& group, const std::vector<OpSpec>& specs, std::uint64_t seed,
               std::span<std::byte> arena = {});

}  // namespace troupe::collectives::testing
