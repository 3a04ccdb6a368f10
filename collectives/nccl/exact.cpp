#include "collectives/nccl/exact.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/log.hpp"

namespace troupe::collectives::nccl {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kLineElements = 64;  ///< a piece is cut at cache lines of every dtype

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

ExactPath::ExactPath(Core& core, std::shared_ptr<Communicator> communicator,
                     const std::vector<LeafInterval>& leaves, std::vector<int> hosts, std::size_t piece_bytes)
    : core_(core),
      caller_(core.facts().caller),
      size_(static_cast<int>(leaves.size())),
      communicator_(std::move(communicator)),
      piece_bytes_(piece_bytes),
      layout_(std::move(hosts)),
      on_leaves_(leaves, layout_, caller_.rank, programs_),
      on_ranks_(rank_leaves(size_), layout_, caller_.rank, programs_),
      scratch_(caller_, communicator_->stream()),
      program_memory_(caller_, communicator_->stream()) {
  const CudaApi& cuda = caller_.api->cuda;
  const PinnedMemory staging(caller_, programs_.size());
  std::memcpy(staging.data(), programs_.data(), programs_.size());
  std::byte* to = program_memory_.get(programs_.size());
  programs_on_device_ = reinterpret_cast<const std::uint8_t*>(to);
  CUDA_TRY(caller_, cuda.cudaMemcpyAsync(to, staging.data(), programs_.size(), communicator_->stream()));
  core_.synchronize(communicator_->stream());  // before the staging memory goes
}

ExactPath::~ExactPath() {
  if (folds_ == nullptr) return;
  const CudaApi& cuda = caller_.api->cuda;
  bool good = true;
  const auto look_at = [&](CudaCode code) { good = code == kCudaSuccess && good; };
  Event& last = events_[0][kFolded];
  if (last != nullptr) {
    look_at(cuda.cudaEventRecord(last, folds_));
    look_at(cuda.cudaStreamWaitEvent(communicator_->stream(), last));
  }
  for (const auto& of_piece : events_) {
    for (Event event : of_piece) {
      if (event != nullptr) look_at(cuda.cudaEventDestroy(event));
    }
  }
  look_at(cuda.cudaStreamDestroy(folds_));
  if (!good) {
    log(LogLevel::kWarning,
        "the stream of exact sums does not end well on rank " + std::to_string(caller_.rank));
  }
}

std::size_t ExactPath::piece_elements(const ExactPlan& plan, DType dtype) const {
  const std::size_t wanted = piece_bytes_ / at(plan.most_partials()) / element_size(dtype);
  const std::size_t least = at(size_) * kLineElements;  // so that only a last piece has slices that differ
  return std::max(least, wanted / least * least);
}

/// Blocks of one size, cut at cache lines; the last ones may be short or empty.
ExactPath::Slices ExactPath::slices_of(std::size_t begin, std::size_t end) const {
  const std::size_t parts = at(size_) * kLineElements;
  const std::size_t block = (end - begin + parts - 1) / parts * kLineElements;
  Slices slices;
  for (int r = 0; r < size_; ++r) {
    slices.push_back({std::min(end, begin + at(r) * block), std::min(end, begin + at(r + 1) * block)});
  }
  return slices;
}

void ExactPath::send(const void* from, std::size_t bytes, int peer, Comm comm) {
  if (bytes == 0) return;
  NCCL_TRY(caller_,
           caller_.api->nccl.ncclSend(from, bytes, NcclType::kUint8, peer, comm, communicator_->stream()));
}

void ExactPath::receive(void* to, std::size_t bytes, int peer, Comm comm) {
  if (bytes == 0) return;
  NCCL_TRY(caller_,
           caller_.api->nccl.ncclRecv(to, bytes, NcclType::kUint8, peer, comm, communicator_->stream()));
}

/// The slots that the owner and the leader need for a piece, and one for the own sum.
std::size_t ExactPath::slots_of(const ExactPlan& plan) {
  const std::size_t led = plan.group().empty() ? 0 : plan.led().size();
  return at(plan.slots()) + led * (at(plan.group_slots()) + plan.group().size()) + 1;
}

void ExactPath::place(const ExactPlan& plan, Piece& piece, std::byte* memory) {
  const std::size_t led = plan.group().empty() ? 0 : plan.led().size();
  const auto take = [&](std::size_t slots) { return std::exchange(memory, memory + slots * piece.stride); };
  piece.others = take(at(plan.slots()));
  piece.led = take(led * at(plan.group_slots()));
  piece.sums = take(led * plan.group().size());
  if (piece.sum == nullptr) piece.sum = memory;
}

/// Within a host: to owners there, and to the leaders for owners elsewhere. To those a rank that is alone
/// sends its partials itself.
void ExactPath::exchange_partials(const Run& run, const Piece& piece) {
  if (size_ == 1) return;
  const ExactPlan& plan = run.plan;
  const HostLayout& layout = plan.layout();
  const LeafInterval group = plan.own_group();
  const std::size_t mine = piece.slices[at(caller_.rank)].size() * run.element;
  const auto give = [&](int owner, int peer, Comm comm) {
    const Slice slice = piece.slices[at(owner)];
    for (const std::byte* partial : run.input.partials)
      send(partial + slice.begin * run.element, slice.size() * run.element, peer, comm);
  };
  communicator_->issue([&](Comm comm) {
    // NCCL matches what goes from one rank to another by its order: first what owners take, then leaders.
    for (int owner = 0; owner < size_; ++owner) {
      if (owner != caller_.rank && layout.together(caller_.rank, owner)) give(owner, owner, comm);
    }
    for (int owner = 0; owner < size_; ++owner) {
      if (layout.together(caller_.rank, owner)) continue;
      const int peer = group.size() == 1 ? owner : leader_for(group, owner);
      if (peer != caller_.rank) give(owner, peer, comm);
    }
    for (int r = 0; r < size_; ++r) {
      if (r == caller_.rank || !layout.together(caller_.rank, r)) continue;
      for (int p = 0; p < plan.partials_of(r); ++p)
        receive(piece.others + at(plan.slot_of_rank(r) + p) * piece.stride, mine, r, comm);
    }
    for (std::size_t g = 0; g < layout.host_groups().size(); ++g) {
      const LeafInterval other = layout.host_groups()[g];
      if (layout.together(caller_.rank, other.begin) || other.size() > 1) continue;
      for (int p = 0; p < plan.sums_of(g); ++p)
        receive(piece.others + at(plan.slot_of_group(g) + p) * piece.stride, mine, other.begin, comm);
    }
    if (group.size() == 1) return;
    for (std::size_t i = 0; i < plan.led().size(); ++i) {
      const std::size_t bytes = piece.slices[at(plan.led()[i])].size() * run.element;
      std::byte* block = piece.led + i * at(plan.group_slots()) * piece.stride;
      for (int r = group.begin; r < group.end; ++r) {
        for (int p = 0; p < plan.partials_of(r) && r != caller_.rank; ++p)
          receive(block + at(plan.group_slot_of(r) + p) * piece.stride, bytes, r, comm);
      }
    }
  });
}

/// As the leader of the host group.
void ExactPath::sum_for_others(const Run& run, const Piece& piece) {
  const auto& group = run.plan.group();
  for (std::size_t i = 0; i < run.plan.led().size(); ++i) {
    const std::byte* block = piece.led + i * at(run.plan.group_slots()) * piece.stride;
    for (std::size_t n = 0; n < group.size(); ++n) {
      fold(run, group[n], block, piece, run.plan.led()[i], false,
           piece.sums + (i * group.size() + n) * piece.stride);
    }
  }
}

/// Between hosts.
void ExactPath::exchange_sums(const Run& run, const Piece& piece) {
  const ExactPlan& plan = run.plan;
  const HostLayout& layout = plan.layout();
  const std::size_t mine = piece.slices[at(caller_.rank)].size() * run.element;
  communicator_->issue([&](Comm comm) {
    for (std::size_t i = 0; i < plan.led().size(); ++i) {
      const std::size_t bytes = piece.slices[at(plan.led()[i])].size() * run.element;
      for (std::size_t n = 0; n < plan.group().size(); ++n)
        send(piece.sums + (i * plan.group().size() + n) * piece.stride, bytes, plan.led()[i], comm);
    }
    for (std::size_t g = 0; g < layout.host_groups().size(); ++g) {
      const LeafInterval other = layout.host_groups()[g];
      if (layout.together(caller_.rank, other.begin) || other.size() == 1) continue;
      const int leader = leader_for(other, caller_.rank);
      for (int p = 0; p < plan.sums_of(g); ++p)
        receive(piece.others + at(plan.slot_of_group(g) + p) * piece.stride, mine, leader, comm);
    }
  });
}

void ExactPath::sum_own(const Run& run, const Piece& piece) {
  fold(run, run.plan.owner(), piece.others, piece, caller_.rank, true, piece.sum);
}

/// Adds up the slice of `rank`: what is in a block of slots, and the own partials. Only the last fold takes
/// the mean.
void ExactPath::fold(const Run& run, const ExactPlan::Fold& by, const std::byte* block, const Piece& piece,
                     int rank, bool is_last, std::byte* out) {
  const Slice slice = piece.slices[at(rank)];
  if (slice.size() == 0) return;
  const bool averages = run.input.how.op == ReduceOp::kAvg;
  TreeFold fold{.received = block + at(by.first_slot) * piece.stride,
                .stride = piece.stride,
                .own_first = by.own_first,
                .own_count = by.own_count,
                .program = programs_on_device_ + by.program,
                .depth = by.depth,
                .sources = by.sources,
                .out = out,
                .count = slice.size(),
                .dtype = run.input.dtype,
                .op = averages && !is_last ? ReduceOp::kSum : run.input.how.op,
                .divisor = run.plan.leaves(),
                .factor = run.input.how.factor};
  for (int i = 0; i < by.own_count; ++i) {
    fold.own[i] = run.input.partials[at(by.first_partial + i)] + slice.begin * run.element;
  }
  CUDA_TRY(caller_, caller_.api->cuda.launch_tree_fold(fold, run.folds));
}

void ExactPath::mark(std::size_t k, Step step, const Run& run, Stream stream) {
  if (run.folds == communicator_->stream()) return;
  Event& event = events_[k % kUnderWay][step];
  if (event == nullptr) CUDA_TRY(caller_, caller_.api->cuda.cudaEventCreate(&event));
  CUDA_TRY(caller_, caller_.api->cuda.cudaEventRecord(event, stream));
}

void ExactPath::hand(std::size_t k, Step step, const Run& run, Stream from, Stream to) {
  mark(k, step, run, from);
  await(k, step, run, to);
}

void ExactPath::await(std::size_t k, Step step, const Run& run, Stream stream) {
  if (run.folds == communicator_->stream()) return;
  CUDA_TRY(caller_, caller_.api->cuda.cudaStreamWaitEvent(stream, events_[k % kUnderWay][step]));
}

/// Piece k + 1 is moved while piece k is folded. With sums before the wire a piece is moved and folded twice,
/// and so three are under way.
void ExactPath::run(const ExactPlan& plan, const Input& input, std::size_t pieces,
                    const std::function<std::byte*(std::size_t, Slices&)>& cut,
                    const std::function<void(const Piece&)>& finish) {
  const Stream moves = communicator_->stream();
  if (pieces > 1 && folds_ == nullptr) CUDA_TRY(caller_, caller_.api->cuda.cudaStreamCreate(&folds_));
  const Run run{plan, input, element_size(input.dtype), pieces > 1 ? folds_ : moves};
  const std::size_t behind = plan.sums_before_wire() ? 2 : 1, sets = std::min(pieces, behind + 1);
  std::array<Piece, kUnderWay> under_way;
  const auto piece_of = [&](std::size_t k) -> Piece& { return under_way[k % kUnderWay]; };
  std::byte* memory = nullptr;
  std::size_t set_bytes = 0;
  for (std::size_t turn = 0; turn < pieces + behind; ++turn) {
    if (turn < pieces) {
      Piece& piece = piece_of(turn);  // the last turn waited for the folds of the one that it replaces
      piece = {};
      piece.sum = cut(turn, piece.slices);
      for (const Slice slice : piece.slices)
        piece.stride = std::max(piece.stride, aligned(std::max<std::size_t>(slice.size() * run.element, 1)));
      if (turn == 0) {  // which is the largest
        set_bytes = slots_of(plan) * piece.stride;
        memory = scratch_.get(sets * set_bytes + at(size_) * piece.stride);
      }
      place(plan, piece, memory + turn % sets * set_bytes);
      piece.gathered = memory + sets * set_bytes;
      exchange_partials(run, piece);
      hand(turn, kMoved, run, moves, run.folds);
      if (plan.sums_before_wire()) {
        sum_for_others(run, piece);
        mark(turn, kSummed, run, run.folds);
      } else {
        sum_own(run, piece);
        mark(turn, kFolded, run, run.folds);
      }
    }
    if (plan.sums_before_wire() && turn >= 1 && turn - 1 < pieces) {
      await(turn - 1, kSummed, run, moves);
      exchange_sums(run, piece_of(turn - 1));
      hand(turn - 1, kSumsMoved, run, moves, run.folds);
      sum_own(run, piece_of(turn - 1));
      mark(turn - 1, kFolded, run, run.folds);
    }
    if (turn >= behind) {
      await(turn - behind, kFolded, run, moves);
      finish(piece_of(turn - behind));
    }
  }
  scratch_.release();
}

void ExactPath::all_reduce(const ExactPlan& plan, const Input& input, std::byte* out) {
  const std::size_t element = element_size(input.dtype), each = piece_elements(plan, input.dtype);
  const CudaApi& cuda = caller_.api->cuda;
  const auto are_equal = [](const Slices& slices) { return slices.back().size() == slices.front().size(); };
  const auto cut = [&](std::size_t k, Slices& slices) {
    slices = slices_of(k * each, std::min(input.count, (k + 1) * each));
    return are_equal(slices) ? out + slices[at(caller_.rank)].begin * element : nullptr;
  };
  run(plan, input, (input.count + each - 1) / each, cut, [&](const Piece& piece) {
    const Slice first = piece.slices.front();
    std::byte* whole = out + first.begin * element;
    const bool equal = are_equal(piece.slices);
    std::byte* to = equal ? whole : piece.gathered;
    if (size_ > 1) {  // NCCL's own algorithm, which crosses a slow link once
      communicator_->issue([&](Comm comm) {
        NCCL_TRY(caller_, caller_.api->nccl.ncclAllGather(piece.sum, to, first.size() * element,
                                                          NcclType::kUint8, comm, communicator_->stream()));
      });
    }
    if (equal) return;
    const std::size_t bytes = (piece.slices.back().end - first.begin) * element;
    CUDA_TRY(caller_, cuda.cudaMemcpyAsync(whole, to, bytes, communicator_->stream()));
  });
}

void ExactPath::reduce(const ExactPlan& plan, const Input& input, std::byte* out, int root) {
  const std::size_t element = element_size(input.dtype), each = piece_elements(plan, input.dtype);
  const bool is_root = caller_.rank == root;
  const auto cut = [&](std::size_t k, Slices& slices) {
    slices = slices_of(k * each, std::min(input.count, (k + 1) * each));
    return is_root ? out + slices[at(caller_.rank)].begin * element : nullptr;
  };
  run(plan, input, (input.count + each - 1) / each, cut, [&](const Piece& piece) {
    if (size_ == 1) return;
    communicator_->issue([&](Comm comm) {
      for (int peer = 0; peer < size_; ++peer) {
        const Slice theirs = piece.slices[at(peer)];
        if (peer != root && is_root)
          receive(out + theirs.begin * element, theirs.size() * element, peer, comm);
      }
      if (!is_root) send(piece.sum, piece.slices[at(caller_.rank)].size() * element, root, comm);
    });
  });
}

void ExactPath::reduce_scatter(const ExactPlan& plan, const Input& input,
                               const std::vector<std::size_t>& counts, std::byte* out) {
  const std::size_t element = element_size(input.dtype);
  const std::size_t each = piece_elements(plan, input.dtype) / at(size_);  // of every rank's part
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  const auto cut = [&](std::size_t k, Slices& slices) {
    std::size_t first = 0;
    for (const std::size_t count : counts) {
      slices.push_back({first + std::min(k * each, count), first + std::min((k + 1) * each, count)});
      first += count;
    }
    return out + k * each * element;
  };
  run(plan, input, (longest + each - 1) / each, cut, [](const Piece&) {});
}

}  // namespace troupe::collectives::nccl
