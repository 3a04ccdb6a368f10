#include "collectives/nccl/call_check.hpp"

#include <cstring>
#include <vector>

#include "runtime/core/assert.hpp"

namespace troupe::collectives::nccl {
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
  const CallWords words = call_words(pending->ops.front(), caller_.rank);
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
  core.compare(*pending, stream, [all = at.all, ranks = static_cast<std::size_t>(size_)] {
    std::vector<CallWords> calls(ranks);
    std::memcpy(calls.data(), all, ranks * sizeof(CallWords));
    return difference(calls);
  });
}

}  // namespace troupe::collectives::nccl
