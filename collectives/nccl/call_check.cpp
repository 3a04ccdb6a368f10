#include "collectives/nccl/call_check.hpp"

#include <cstring>

#include "runtime/core/assert.hpp"

namespace troupe::collectives::nccl {
namespace {

std::string text_of(const CallWords& words) {
  return to_string(OpWords{words[0], words[1], words[2]}) + " #" + std::to_string(words[3]);
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
  const CallWords words{call[0], call[1], call[2], op.sequence};
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
  for (int rank = 1; rank < size_; ++rank) {
    if (words_of(rank) == first) continue;
    return "ranks called different operations: rank 0 " + text_of(first) + ", rank " + std::to_string(rank) +
           " " + text_of(words_of(rank));
  }
  return {};
}

}  // namespace troupe::collectives::nccl
