#include "collectives/nccl/communicator.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"

namespace troupe::collectives::nccl {
namespace {

using namespace std::chrono_literals;

/// How long a revoked communicator has to become quiet before it is aborted.
constexpr Duration kQuiesceLimit = 2s;

}  // namespace

void pause_turn(unsigned turn) {
  constexpr unsigned kYields = 200;
  if (turn < kYields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::min<Duration>(20us * (turn - kYields + 1), 1ms));
  }
}

Communicator::Communicator(Caller caller, Patient patient) : caller_(caller), patient_(std::move(patient)) {
  CUDA_TRY(caller_, caller_.api->cuda.cudaStreamCreate(&stream_));
}

Communicator::~Communicator() {
  abort();
  if (caller_.api->cuda.cudaStreamDestroy(stream_) != kCudaSuccess) {
    log(LogLevel::kWarning, "cudaStreamDestroy failed on rank " + std::to_string(caller_.rank));
  }
}

void Communicator::init(int ranks, int rank, const UniqueId& id) {
  {
    const std::lock_guard hold(mutex_);
    NCCL_TRY(caller_, caller_.api->nccl.ncclCommInitRankConfig(&made_, ranks, id, rank));
    state_ = State::kUsable;
    take_made();
  }
  await_ready();
}

void Communicator::shrink_from(Communicator& parent, std::vector<int> gone) {
  {
    const std::scoped_lock hold(mutex_, parent.mutex_);
    if (parent.state_ != State::kUsable && parent.state_ != State::kRevoked) parent.require_usable();
    NCCL_TRY(caller_, caller_.api->nccl.ncclCommShrink(parent.comm_, gone.data(),
                                                       static_cast<int>(gone.size()), &made_));
    state_ = State::kUsable;
  }
  await_child_of(parent);
}

/// NCCL fills in the new communicator by the time its parent is ready, and not before that may it be looked
/// at. If the parent never is, ending it ends the attempt, which would otherwise write to us later.
void Communicator::await_child_of(Communicator& parent) {
  std::exception_ptr failed;
  try {
    parent.await_ready(patient_);
  } catch (...) {
    parent.abort();
    failed = std::current_exception();
  }
  {
    const std::lock_guard hold(mutex_);
    take_made();  // of an attempt that failed, too: to be aborted
  }
  if (failed) std::rethrow_exception(failed);
  await_ready();
}

void Communicator::take_made() {
  comm_ = std::atomic_ref(made_).load(std::memory_order_acquire);
}

void Communicator::grow_from(Communicator& parent, int ranks, const UniqueId* id) {
  {
    const std::scoped_lock hold(mutex_, parent.mutex_);
    parent.require_usable();
    NCCL_TRY(caller_, caller_.api->nccl.ncclCommGrow(parent.comm_, ranks, id, -1, &made_));
    state_ = State::kUsable;
  }
  await_child_of(parent);
}

void Communicator::join_grown(int ranks, int rank, const UniqueId& id) {
  {
    const std::lock_guard hold(mutex_);
    NCCL_TRY(caller_, caller_.api->nccl.ncclCommGrow(nullptr, ranks, &id, rank, &made_));
    state_ = State::kUsable;
    take_made();
  }
  await_ready();
}

UniqueId Communicator::unique_id_to_grow() {
  UniqueId id;
  with([&](Comm comm) { NCCL_TRY(caller_, caller_.api->nccl.ncclCommGetUniqueId(comm, &id)); });
  return id;
}

void Communicator::require_usable() const {
  if (state_ == State::kUsable) return;
  throw_error({ErrorCode::kAborted, "the communicator of rank " + std::to_string(caller_.rank) + " has ended",
               state_ == State::kRevoked ? "it was revoked" : "it was aborted or closed",
               "the next generation is a new group"});
}

void Communicator::await_ready() {
  await_ready(patient_);
}

/// The state as of now. A communicator that NCCL has yet to fill in is in progress.
NcclCode Communicator::poll() {
  const std::lock_guard hold(mutex_);
  if (state_ == State::kGone) require_usable();
  if (comm_ == nullptr) take_made();
  if (comm_ == nullptr) return kNcclInProgress;
  NcclCode code = kNcclSuccess;
  NCCL_TRY(caller_, caller_.api->nccl.ncclCommGetAsyncError(comm_, &code));
  return code;
}

void Communicator::await_ready(const Patient& patient) {
  const Instant deadline = clock_.now() + patient.limit;
  for (unsigned turn = 0;; ++turn) {
    patient.check();
    const NcclCode code = poll();
    if (code == kNcclSuccess) break;
    if (code != kNcclInProgress) throw_nccl(caller_, "ncclCommGetAsyncError", code);
    if (clock_.now() > deadline) {
      throw_error({ErrorCode::kTimeout,
                   "NCCL was not ready on rank " + std::to_string(caller_.rank) + " after " +
                       std::to_string(to_seconds(patient.limit)) + " s",
                   "a rank is missing, or a network interface that NCCL chose is not reachable",
                   "see that every rank runs; NCCL_DEBUG=INFO shows the interfaces"});
    }
    pause_turn(turn);
  }
  const std::lock_guard hold(mutex_);
  was_ready_ = true;
}

std::string Communicator::async_error() {
  const std::lock_guard hold(mutex_);
  if (state_ != State::kUsable || comm_ == nullptr) return {};
  const NcclApi& api = caller_.api->nccl;
  NcclCode code = kNcclSuccess;
  const NcclCode asked = api.ncclCommGetAsyncError(comm_, &code);
  if (asked != kNcclSuccess) code = asked;
  if (code == kNcclSuccess || code == kNcclInProgress) return {};
  const char* last = api.ncclGetLastError(comm_);
  return "ncclCommGetAsyncError on rank " + std::to_string(caller_.rank) + ": " +
         api.ncclGetErrorString(code) + " (code " + std::to_string(code) + ")" +
         (last != nullptr && *last != '\0' ? std::string(": ") + last : "");
}

void Communicator::abort_locked() noexcept {
  if (state_ != State::kUsable && state_ != State::kRevoked) return;
  if (comm_ == nullptr) return;  // NCCL may yet fill it in: whoever waits for that aborts it then
  state_ = State::kGone;
  const NcclCode code = caller_.api->nccl.ncclCommAbort(comm_);
  if (code != kNcclSuccess && code != kNcclInProgress) {
    log(LogLevel::kWarning, "ncclCommAbort failed on rank " + std::to_string(caller_.rank) + " with code " +
                                std::to_string(code));
  }
}

void Communicator::abort() noexcept {
  const std::lock_guard hold(mutex_);
  abort_locked();
}

void Communicator::stop() noexcept {
  {
    const std::lock_guard hold(mutex_);
    if (state_ != State::kUsable) return;
    const auto& revoke = caller_.api->nccl.ncclCommRevoke;
    if (!revoke || !was_ready_) return abort_locked();
    const NcclCode code = revoke(comm_);
    if (code != kNcclSuccess && code != kNcclInProgress) return abort_locked();
    state_ = State::kRevoked;
  }
  if (!quiesce(kQuiesceLimit)) abort();
}

bool Communicator::quiesce(Duration limit) noexcept {
  try {
    await_ready({limit, [] {}});
    return true;
  } catch (const std::exception& e) {
    log(LogLevel::kWarning, std::string("NCCL's communicator does not become quiet: ") + e.what());
    return false;
  }
}

void Communicator::close(Duration limit) noexcept {
  {
    const std::lock_guard hold(mutex_);
    if (state_ != State::kUsable) return abort_locked();
    const NcclCode code = caller_.api->nccl.ncclCommFinalize(comm_);
    if (code != kNcclSuccess && code != kNcclInProgress) return abort_locked();
  }
  if (!quiesce(limit)) return abort();
  const std::lock_guard hold(mutex_);
  if (state_ != State::kUsable) return;
  state_ = State::kGone;
  const NcclCode code = caller_.api->nccl.ncclCommDestroy(comm_);
  if (code != kNcclSuccess) {
    log(LogLevel::kWarning, "ncclCommDestroy failed on rank " + std::to_string(caller_.rank) + " with code " +
                                std::to_string(code));
  }
}

bool Communicator::can_shrink() const {
  const std::lock_guard hold(mutex_);
  return caller_.api->nccl.ncclCommShrink && (state_ == State::kUsable || state_ == State::kRevoked);
}

bool Communicator::healthy() const {
  const std::lock_guard hold(mutex_);
  return state_ == State::kUsable;
}

}  // namespace troupe::collectives::nccl
