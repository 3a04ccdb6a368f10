#include "collectives/nccl/call_check.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/core/assert.hpp"

namespace troupe::collectives::nccl {
namespace {

std::string text_of(const CallWords& words) {
  return to_string(OpWords{words[0], words[1], words[2]}) + " #" + std::to_string(words[3]);
}

/// A number for `count` elements that one rank gives another.
std::uint64_t number_of(int from, int to, std::uint64_t count) {
  std::uint64_t mixed = 0;
  for (const std::uint64_t word : {std::uint64_t(from) + 1, std::uint64_t(to) + 1, count + 1}) {
    mixed = (mixed ^ word) * 0x9e3779b97f4a7c15;
    mixed ^= mixed >> 29;
  }
  return mixed * 0xbf58476d1ce4e5b9;
}

std::uint64_t balance_of(const Op& op, int rank) {
  if (op.kind != OpKind::kAllToAllV) return 0;
  std::uint64_t balance = 0;
  for (std::size_t peer = 0; peer < op.counts.size(); ++peer) {
    balance += number_of(rank, static_cast<int>(peer), op.counts[peer]);
    balance -= number_of(static_cast<int>(peer), rank, op.from_counts[peer]);
  }
  return balance;
}

}  // namespace

CallCheck::CallCheck(Caller caller, int size, std::shared_ptr<Communicator> communicator)
    : caller_(caller),
      size_(size),
      communicator_(std::move(communicator)),
      slot_bytes_(sizeof(CallWords) * static_cast<std::size_t>(size + 1)),
      pinned_(caller, slot_bytes_ * kSlots),
      device_(caller, communicator_->stream()) {}

CallCheck::Slot CallCheck::slot(std::size_t index) {
  std::byte* host = pinned_.data() + index * slot_bytes_;
  return {host, host + sizeof(CallWords), device_.get(slot_bytes_ * kSlots) + index * slot_bytes_};
}

void CallCheck::ride(Core& core, std::shared_ptr<PendingOp> pending) {
  TROUPE_ASSERT(pending->ops.size() == 1, "a call is compared by itself");
  const std::size_t index = next_++ % kSlots;
  while (riders_[index] && !core.settle_within(*riders_[index], core.facts().timeout)) core.check();
  riders_[index] = pending;

  const Slot at = slot(index);
  const Op& op = pending->ops.front();
  const OpWords call = encode(op);
  const CallWords words{call[0], call[1], call[2], op.sequence, balance_of(op, caller_.rank)};
  std::memcpy(at.mine, words.data(), sizeof words);
  const CudaApi& cuda = caller_.api->cuda;
  const Stream stream = communicator_->stream();
  std::byte* own = at.gathered + static_cast<std::size_t>(caller_.rank) * sizeof words;
  CUDA_TRY(caller_, cuda.cudaMemcpyAsync(own, at.mine, sizeof words, stream));
  communicator_->issue([&](Comm comm) {
    NCCL_TRY(caller_,
             caller_.api->nccl.ncclAllGather(own, at.gathered, sizeof words, NcclType::kUint8, comm, stream));
  });
  const std::size_t all_bytes = sizeof words * static_cast<std::size_t>(size_);
  CUDA_TRY(caller_, cuda.cudaMemcpyAsync(at.all, at.gathered, all_bytes, stream));
  core.compare(*pending, stream, [this, all = at.all] { return compare(all); });
}

/// What differs, in words; empty: nothing.
std::string CallCheck::compare(const std::byte* all) const {
  const auto words_of = [&](int rank) {
    CallWords words;
    std::memcpy(words.data(), all + static_cast<std::size_t>(rank) * sizeof words, sizeof words);
    return words;
  };
  const CallWords first = words_of(0);
  std::uint64_t balance = first.back();
  for (int rank = 1; rank < size_; ++rank) {
    const CallWords other = words_of(rank);
    balance += other.back();
    if (std::equal(other.begin(), other.end() - 1, first.begin())) continue;
    return "ranks called different operations: rank 0 " + text_of(first) + ", rank " + std::to_string(rank) +
           " " + text_of(other);
  }
  if (balance != 0) return "ranks give each other other counts than they take in " + text_of(first);
  return {};
}

}  // namespace troupe::collectives::nccl
