/// A group's life, and its memory.

#include <algorithm>

#include "collectives/nccl/group.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"

namespace troupe::collectives::nccl {
namespace {

constexpr std::size_t kRowAlignment = 256;

}  // namespace

NcclGroup::NcclGroup(NcclGroupOptions options, std::shared_ptr<Core> core, Communicators communicators)
    : ProcessGroup({.backend = "nccl",
                    .rank = options.rank,
                    .size = options.size,
                    .generation = options.generation,
                    .leaves = options.leaves,
                    .device = {DeviceKind::kCuda, options.device},
                    .name = options.name}),
      options_(std::move(options)),
      core_(std::move(core)),
      communicators_(std::move(communicators)),
      collectives_(communicators_.at(kCollectives)) {
  const Caller& caller = core_->facts().caller;
  CUDA_TRY(caller, core_->api().cuda.load_kernels());
  exact_ = std::make_unique<ExactPath>(*core_, collectives_, options_.leaves, options_.hosts,
                                       options_.exact_piece_bytes);
  barrier_memory_ = std::make_unique<Scratch>(caller, collectives_->stream());
  barrier_byte_ = barrier_memory_->get(1);
  if (options_.compare_calls) {
    call_check_ = std::make_unique<CallCheck>(caller, options_.size, collectives_);
  }
  if (communicators_.size() == kCommunicators) {
    messages_ = std::make_shared<Messages>(core_, communicators_[kUp], communicators_[kDown]);
  }
}

NcclGroup::~NcclGroup() {
  try {
    const OnDevice on(core_->facts().caller, options_.device);
    end();
  } catch (const std::exception& e) {
    log(LogLevel::kWarning, std::string("a group does not end as it should: ") + e.what());
    core_->leave();
    if (messages_) messages_->clear();
  }
}

void NcclGroup::end() {
  try {
    drain();
  } catch (const std::exception& e) {
    log(LogLevel::kInfo, std::string("a group ends with operations that did not: ") + e.what());
  }
  (void)core_->reason_heard();  // hears of what the others said last
  core_->leave();
  if (messages_) messages_->clear();
  const bool failed = core_->failed();
  if (failed) {
    abort_all(communicators_);
    synchronize();  // nothing may run in memory that is given back
  }
  for (const Allocation& allocation : allocations_) free_allocation(allocation);
  if (!failed) close_all(communicators_, options_.timeout, [&] { return !core_->reason_heard().empty(); });
  exact_.reset();
  call_check_.reset();
  barrier_memory_.reset();
}

void NcclGroup::synchronize() {
  for (const auto& communicator : communicators_) core_->synchronize(communicator->stream());
  exact_->synchronize();
}

void NcclGroup::await_quiet() {
  if (core_->abort_reason().empty()) return;
  const OnDevice on(core_->facts().caller, options_.device);
  core_->await_stopped();
  synchronize();
}

void NcclGroup::drain() {
  if (messages_) messages_->flush();
  core_->drain();
}

// Memory that NCCL knows.

void NcclGroup::free_allocation(const Allocation& allocation) {
  const NcclApi& api = core_->api().nccl;
  if (allocation.handle != nullptr && collectives_->healthy()) {
    try {
      collectives_->with([&](Comm comm) {
        NCCL_TRY(core_->facts().caller, api.ncclCommDeregister(comm, allocation.handle));
      });
    } catch (const std::exception& e) {
      log(LogLevel::kWarning, e.what());
    }
  }
  if (api.ncclMemFree(allocation.data) != kNcclSuccess) {
    log(LogLevel::kWarning, "ncclMemFree failed on rank " + std::to_string(options_.rank));
  }
}

ProcessGroup::Released NcclGroup::release(std::byte* at) {
  const auto found = std::find_if(allocations_.begin(), allocations_.end(),
                                  [&](const Allocation& one) { return one.data == at && !one.is_tree; });
  if (found == allocations_.end()) return Released::kNotReserved;
  const OnDevice on(core_->facts().caller, options_.device);
  drain();
  synchronize();  // kernels may be at it still, though the operation is in the stream's order complete
  const Allocation allocation = *found;
  allocations_.erase(found);
  free_allocation(allocation);
  return Released::kYes;
}

std::vector<std::byte*> NcclGroup::reserve(std::size_t count, DType dtype, bool tree) {
  core_->check();
  const Caller& caller = core_->facts().caller;
  const NcclApi& api = core_->api().nccl;
  const OnDevice on(caller, options_.device);
  if (!api.ncclMemAlloc || !api.ncclCommRegister) {
    throw BadConfig("cannot allocate", "NCCL " + version_text(api.version) + " has no ncclMemAlloc",
                    "use NCCL 2.19 or later, or memory of your own");
  }
  const std::size_t stride =
      (count * element_size(dtype) + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  std::vector<std::byte*> arrays(tree ? facts().partials().size() : 1);
  const std::size_t bytes = std::max<std::size_t>(stride * arrays.size(), 1);
  void* data = nullptr;
  NCCL_TRY(caller, api.ncclMemAlloc(&data, bytes));
  Allocation& made = allocations_.emplace_back(Allocation{.data = data, .is_tree = tree});
  collectives_->with(
      [&](Comm comm) { NCCL_TRY(caller, api.ncclCommRegister(comm, made.data, bytes, &made.handle)); });
  for (std::size_t i = 0; i < arrays.size(); ++i) arrays[i] = static_cast<std::byte*>(made.data) + i * stride;
  return arrays;
}

}  // namespace troupe::collectives::nccl
