#include "collectives/nccl/exact.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/core/assert.hpp"

namespace troupe::collectives::nccl {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::vector<LeafInterval> all_nodes(const std::vector<LeafInterval>& intervals) {
  std::vector<LeafInterval> nodes;
  for (LeafInterval interval : intervals) {
    const auto own = canonical_nodes(interval, intervals.back().end);
    nodes.insert(nodes.end(), own.begin(), own.end());
  }
  return nodes;
}

}  // namespace

std::size_t Plan::staging_bytes(const std::vector<LeafInterval>& intervals) {
  return all_nodes(intervals).size();
}

Plan::Plan(Caller caller, Stream stream, const std::vector<LeafInterval>& intervals, std::byte* staging)
    : leaves_(intervals.back().end), memory_(caller, stream) {
  first_.push_back(0);
  for (LeafInterval interval : intervals) {
    const auto own = static_cast<int>(canonical_nodes(interval, leaves_).size());
    TROUPE_ASSERT(own <= kMaxOwnPartials, "a rank has few partials");
    first_.push_back(first_.back() + own);
  }
  const auto program = fold_program(all_nodes(intervals), leaves_);
  std::memcpy(staging, program.data(), program.size());
  std::byte* at = memory_.get(program.size());
  CUDA_TRY(caller, caller.api->cuda.cudaMemcpyAsync(at, staging, program.size(), stream));
  program_ = reinterpret_cast<const std::uint8_t*>(at);
}

ExactPath::ExactPath(Caller caller, int size, std::shared_ptr<Communicator> communicator,
                     const std::vector<LeafInterval>& leaves, std::size_t piece_bytes, std::byte* staging)
    : caller_(caller),
      size_(size),
      communicator_(std::move(communicator)),
      piece_bytes_(piece_bytes),
      on_leaves_(caller, communicator_->stream(), leaves, staging),
      on_ranks_(caller, communicator_->stream(), rank_leaves(size), staging + Plan::staging_bytes(leaves)),
      scratch_(caller, communicator_->stream()) {}

std::size_t ExactPath::staging_bytes(const std::vector<LeafInterval>& leaves) {
  return Plan::staging_bytes(leaves) + leaves.size();
}

ExactPath::Slices ExactPath::slices_of(std::size_t begin, std::size_t end, std::size_t element_bytes) const {
  Slices slices;
  for (int r = 0; r < size_; ++r) {
    const Slice slice = slice_of(end - begin, element_bytes, r, size_);
    slices.push_back({begin + slice.begin, begin + slice.end});
  }
  return slices;
}

/// Calls body(begin, end) for pieces of [0, count) that are cut at cache lines.
template <class Body>
void ExactPath::by_pieces(std::size_t count, const Input& input, Body body) {
  constexpr std::size_t kLineElements = 64;
  const std::size_t wanted = piece_bytes_ / element_size(input.dtype) / kLineElements * kLineElements;
  const std::size_t piece = std::max(kLineElements, wanted);
  for (std::size_t at = 0; at < count; at += piece) body(at, std::min(count, at + piece));
  scratch_.release();
}

void ExactPath::exchange(const Plan& plan, const Input& input, const Slices& slices, std::byte* received,
                         std::size_t stride) {
  const std::size_t element = element_size(input.dtype);
  const NcclApi& api = caller_.api->nccl;
  const auto mine = static_cast<std::size_t>(caller_.rank);
  communicator_->issue([&](Comm comm) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == caller_.rank) continue;
      const Slice theirs = slices[static_cast<std::size_t>(peer)];
      for (const std::byte* partial : input.partials) {
        if (theirs.size() == 0) break;
        NCCL_TRY(caller_, api.ncclSend(partial + theirs.begin * element, theirs.size() * element,
                                       NcclType::kUint8, peer, comm, communicator_->stream()));
      }
      for (int p = 0; p < plan.partials_of(peer) && slices[mine].size() != 0; ++p) {
        const int before = plan.first_of(peer) - (peer > caller_.rank ? plan.partials_of(caller_.rank) : 0);
        NCCL_TRY(caller_, api.ncclRecv(received + static_cast<std::size_t>(before + p) * stride,
                                       slices[mine].size() * element, NcclType::kUint8, peer, comm,
                                       communicator_->stream()));
      }
    }
  });
}

std::byte* ExactPath::sum_slice(const Plan& plan, const Input& input, const Slices& slices, std::byte* out) {
  const std::size_t element = element_size(input.dtype);
  const Slice mine = slices[static_cast<std::size_t>(caller_.rank)];
  const std::size_t stride = aligned(mine.size() * element);
  const auto others = static_cast<std::size_t>(plan.partials() - plan.partials_of(caller_.rank));
  std::byte* received = scratch_.get((others + 1) * std::max(stride, kAlignment));
  if (out == nullptr) out = received + others * stride;
  if (size_ > 1) exchange(plan, input, slices, received, stride);

  TreeFold fold{.received = received,
                .stride = stride,
                .own_first = plan.first_of(caller_.rank),
                .own_count = plan.partials_of(caller_.rank),
                .program = plan.program(),
                .sources = plan.partials(),
                .out = out,
                .count = mine.size(),
                .dtype = input.dtype,
                .op = input.how.op,
                .divisor = plan.leaves(),
                .factor = input.how.factor};
  for (std::size_t i = 0; i < input.partials.size(); ++i) {
    fold.own[i] = input.partials[i] + mine.begin * element;
  }
  if (fold.count != 0) CUDA_TRY(caller_, caller_.api->cuda.launch_tree_fold(fold, communicator_->stream()));
  return out;
}

void ExactPath::all_reduce(const Plan& plan, const Input& input, std::byte* out) {
  const std::size_t element = element_size(input.dtype);
  const NcclApi& api = caller_.api->nccl;
  by_pieces(input.count, input, [&](std::size_t begin, std::size_t end) {
    const Slices slices = slices_of(begin, end, element);
    const Slice mine = slices[static_cast<std::size_t>(caller_.rank)];
    const std::byte* sum = sum_slice(plan, input, slices, out + mine.begin * element);
    if (size_ == 1) return;
    const bool equal =
        std::all_of(slices.begin(), slices.end(), [&](const Slice& s) { return s.size() == mine.size(); });
    communicator_->issue([&](Comm comm) {
      if (equal) {  // NCCL's own algorithm, which crosses a slow link once
        NCCL_TRY(caller_, api.ncclAllGather(sum, out + begin * element, mine.size() * element,
                                            NcclType::kUint8, comm, communicator_->stream()));
        return;
      }
      for (int peer = 0; peer < size_; ++peer) {
        const Slice theirs = slices[static_cast<std::size_t>(peer)];
        if (peer == caller_.rank) continue;
        if (mine.size() != 0) {
          NCCL_TRY(caller_, api.ncclSend(sum, mine.size() * element, NcclType::kUint8, peer, comm,
                                         communicator_->stream()));
        }
        if (theirs.size() != 0) {
          NCCL_TRY(caller_, api.ncclRecv(out + theirs.begin * element, theirs.size() * element,
                                         NcclType::kUint8, peer, comm, communicator_->stream()));
        }
      }
    });
  });
}

void ExactPath::reduce(const Plan& plan, const Input& input, std::byte* out, int root) {
  const std::size_t element = element_size(input.dtype);
  const NcclApi& api = caller_.api->nccl;
  const bool is_root = caller_.rank == root;
  by_pieces(input.count, input, [&](std::size_t begin, std::size_t end) {
    const Slices slices = slices_of(begin, end, element);
    const Slice mine = slices[static_cast<std::size_t>(caller_.rank)];
    const std::byte* sum = sum_slice(plan, input, slices, is_root ? out + mine.begin * element : nullptr);
    if (size_ == 1) return;
    communicator_->issue([&](Comm comm) {
      if (!is_root) {
        if (mine.size() == 0) return;
        NCCL_TRY(caller_, api.ncclSend(sum, mine.size() * element, NcclType::kUint8, root, comm,
                                       communicator_->stream()));
        return;
      }
      for (int peer = 0; peer < size_; ++peer) {
        const Slice theirs = slices[static_cast<std::size_t>(peer)];
        if (peer == root || theirs.size() == 0) continue;
        NCCL_TRY(caller_, api.ncclRecv(out + theirs.begin * element, theirs.size() * element,
                                       NcclType::kUint8, peer, comm, communicator_->stream()));
      }
    });
  });
}

void ExactPath::reduce_scatter(const Plan& plan, const Input& input, const std::vector<std::size_t>& counts,
                               std::byte* out) {
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  by_pieces(longest, input, [&](std::size_t begin, std::size_t end) {
    Slices slices;
    std::size_t first = 0;
    for (const std::size_t count : counts) {
      slices.push_back({first + std::min(begin, count), first + std::min(end, count)});
      first += count;
    }
    sum_slice(plan, input, slices, out + begin * element_size(input.dtype));
  });
}

}  // namespace troupe::collectives::nccl
