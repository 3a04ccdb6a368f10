/// Reductions whose bits do not depend on NCCL's choices: ranks exchange slices of their partials, each adds
/// up its slice in tree order (tree_fold.hpp), and the sums go to whoever wants them. A host group sends its
/// sum to another host, and not its ranks' partials (exact_plan.hpp). NCCL only moves bytes, so every dtype
/// and operation that the native backend reduces is reduced here.
///
/// Large buffers go in pieces: the communicator's stream moves one piece while a stream of the path's own
/// adds up the one before.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/native/tree_sum.hpp"
#include "collectives/nccl/core.hpp"
#include "collectives/nccl/exact_plan.hpp"
#include "collectives/nccl/memory.hpp"
#include "collectives/nccl/tree_fold.hpp"

namespace troupe::collectives::nccl {

/// The exact path of one group. One thread; operations run in the order of the communicator's stream.
class ExactPath {
 public:
  /// `leaves`: every rank's. `hosts`: by rank, any numbers; ranks with the same one are on one host.
  /// `piece_bytes` bounds the memory: at most 4 pieces with one host, 10 with several, and 256 bytes a slot
  /// of each.
  /// Waits until the device has the fold programs.
  ExactPath(Core& core, std::shared_ptr<Communicator> communicator, const std::vector<LeafInterval>& leaves,
            std::vector<int> hosts, std::size_t piece_bytes);
  /// What it frees, it frees behind its last fold.
  ~ExactPath();
  ExactPath(const ExactPath&) = delete;
  ExactPath& operator=(const ExactPath&) = delete;

  /// What is reduced: this rank's partials, each of `count` elements.
  struct Input {
    std::vector<const std::byte*> partials;
    std::size_t count = 0;
    DType dtype = DType::kFloat32;
    Reduction how{};
  };
  const ExactPlan& on_leaves() const { return on_leaves_; }
  const ExactPlan& on_ranks() const { return on_ranks_; }

  /// Waits on the host until none of its folds runs, as Core::synchronize.
  void synchronize() {
    if (folds_ != nullptr) core_.synchronize(folds_);
  }
  void all_reduce(const ExactPlan& plan, const Input& input, std::byte* out);
  void reduce(const ExactPlan& plan, const Input& input, std::byte* out, int root);
  /// `input.count` is of the whole input: counts[r] elements for rank r, side by side.
  void reduce_scatter(const ExactPlan& plan, const Input& input, const std::vector<std::size_t>& counts,
                      std::byte* out);

 private:
  /// Elements from the start of a partial, a rank.
  using Slices = std::vector<Slice>;
  /// A piece that is under way, and its memory.
  struct Piece {
    Slices slices;
    std::size_t stride = 0;         ///< bytes of a slot; the same for each of its blocks
    std::byte* others = nullptr;    ///< what this rank adds up as the owner of its slice
    std::byte* led = nullptr;       ///< by led rank: what its host group sent
    std::byte* sums = nullptr;      ///< by led rank: the sums of the host group
    std::byte* sum = nullptr;       ///< of the own slice: where it goes
    std::byte* gathered = nullptr;  ///< where the slices come together if they differ in size
  };
  struct Run {
    const ExactPlan& plan;
    const Input& input;
    std::size_t element;  ///< bytes
    Stream folds;         ///< the stream of the folds
  };
  enum Step { kMoved, kSummed, kSumsMoved, kFolded, kSteps };
  static constexpr std::size_t kUnderWay = 3;  ///< pieces, at most

  std::size_t piece_elements(const ExactPlan& plan, DType dtype) const;
  Slices slices_of(std::size_t begin, std::size_t end) const;
  /// Runs `pieces` pieces: `cut(k)` gives the slices of one and where its sum goes (null: to memory of the
  /// path), `finish(piece)` sends the sums.
  void run(const ExactPlan& plan, const Input& input, std::size_t pieces,
           const std::function<std::byte*(std::size_t k, Slices& slices)>& cut,
           const std::function<void(const Piece& piece)>& finish);
  static std::size_t slots_of(const ExactPlan& plan);
  static void place(const ExactPlan& plan, Piece& piece, std::byte* memory);
  void exchange_partials(const Run& run, const Piece& piece);
  void sum_for_others(const Run& run, const Piece& piece);
  void exchange_sums(const Run& run, const Piece& piece);
  void sum_own(const Run& run, const Piece& piece);
  void fold(const Run& run, const ExactPlan::Fold& fold, const std::byte* block, const Piece& piece, int rank,
            bool is_last, std::byte* out);
  void send(const void* from, std::size_t bytes, int peer, Comm comm);
  void receive(void* to, std::size_t bytes, int peer, Comm comm);
  /// Notes that piece k is through `step` on a stream; makes one wait for that; both.
  void mark(std::size_t k, Step step, const Run& run, Stream stream);
  void await(std::size_t k, Step step, const Run& run, Stream stream);
  void hand(std::size_t k, Step step, const Run& run, Stream from, Stream to);

  Core& core_;
  Caller caller_;
  int size_;
  std::shared_ptr<Communicator> communicator_;
  std::size_t piece_bytes_;
  HostLayout layout_;
  std::vector<std::uint8_t> programs_;
  ExactPlan on_leaves_, on_ranks_;
  Stream folds_ = nullptr;
  std::array<std::array<Event, kSteps>, kUnderWay> events_{};
  Scratch scratch_, program_memory_;
  const std::uint8_t* programs_on_device_ = nullptr;
};

}  // namespace troupe::collectives::nccl
