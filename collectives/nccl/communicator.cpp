#include "collectives/nccl/communicator.hpp"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <utility>

#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"

namespace troupe::collectives::nccl {
namespace {

using namespace std::chrono_literals;

/// How long a revoked communicator has to become quiet before it is aborted.
constexpr Duration kQuiesceLimit = 2s;

/// A call of the end, whose failure nobody can do anything about.
template <class Call>
void warn_of(const Caller& caller, const char* name, Call call) {
  const NcclCode code = call(caller.api->nccl);
  if (code == kNcclSuccess || code == kNcclInProgress) return;
  log(LogLevel::kWarning, std::string(name) + " failed on rank " + std::to_string(caller.rank) +
                              " with code " + std::to_string(code));
}

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
    in_progress_ = true;
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
    parent.in_progress_ = in_progress_ = true;
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
    parent.in_progress_ = in_progress_ = true;
  }
  await_child_of(parent);
}

void Communicator::join_grown(int ranks, int rank, const UniqueId& id) {
  {
    const std::lock_guard hold(mutex_);
    NCCL_TRY(caller_, caller_.api->nccl.ncclCommGrow(nullptr, ranks, &id, rank, &made_));
    state_ = State::kUsable;
    in_progress_ = true;
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
  if (state_ == State::kGone || state_ == State::kStopped) require_usable();
  if (comm_ == nullptr) take_made();
  if (comm_ == nullptr) return kNcclInProgress;
  NcclCode code = kNcclSuccess;
  NCCL_TRY(caller_, caller_.api->nccl.ncclCommGetAsyncError(comm_, &code));
  if (code == kNcclSuccess) {
    in_progress_ = false;
    was_ready_ = true;
  }
  return code;
}

bool Communicator::is_ready() {
  const NcclCode code = poll();
  if (code != kNcclSuccess && code != kNcclInProgress) throw_nccl(caller_, "ncclCommGetAsyncError", code);
  return code == kNcclSuccess;
}

void Communicator::await_ready(const Patient& patient) {
  const Instant deadline = clock_.now() + patient.limit;
  for (unsigned turn = 0;; ++turn) {
    patient.check();
    if (is_ready()) return;
    if (clock_.now() > deadline) {
      throw_error({ErrorCode::kTimeout,
                   "NCCL was not ready on rank " + std::to_string(caller_.rank) + " after " +
                       std::to_string(to_seconds(patient.limit)) + " s",
                   "a rank is missing, or a network interface that NCCL chose is not reachable",
                   "see that every rank runs; NCCL_DEBUG=INFO shows the interfaces"});
    }
    pause_turn(turn);
  }
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

void Communicator::revoke() noexcept {
  const std::lock_guard hold(mutex_);
  if (state_ != State::kUsable) return;
  state_ = State::kStopped;
  const NcclApi& api = caller_.api->nccl;
  NcclCode code = kNcclSuccess;
  if (!api.ncclCommRevoke || !was_ready_ || comm_ == nullptr) return;
  // A call that is in progress would be left behind, and the communicator never become quiet.
  if (in_progress_ && (api.ncclCommGetAsyncError(comm_, &code) != kNcclSuccess || code != kNcclSuccess))
    return;
  code = api.ncclCommRevoke(comm_);
  if (code == kNcclSuccess || code == kNcclInProgress) state_ = State::kRevoked;
}

/// NCCL's error of a peer's death may stay for good: what reports it is never quiet.
bool Communicator::await_revoked(Duration limit) noexcept {
  {
    const std::lock_guard hold(mutex_);
    if (state_ != State::kRevoked) return false;
  }
  return quiesce({limit, [] {}});
}

bool Communicator::quiesce(const Patient& patient) noexcept {
  try {
    await_ready(patient);
    return true;
  } catch (const std::exception& e) {
    log(LogLevel::kWarning, std::string("NCCL's communicator does not become quiet: ") + e.what());
    return false;
  }
}

bool Communicator::finalize() noexcept {
  const std::lock_guard hold(mutex_);
  if (state_ != State::kUsable || in_progress_ || comm_ == nullptr) return false;
  const NcclCode code = caller_.api->nccl.ncclCommFinalize(comm_);
  in_progress_ = true;
  return code == kNcclSuccess || code == kNcclInProgress;
}

bool Communicator::await_finalized(Duration limit, const std::function<bool()>& is_over) noexcept {
  return quiesce({limit, [&] {
                    if (is_over()) throw std::runtime_error("the group was aborted");
                  }});
}

Comm Communicator::take() noexcept {
  const std::lock_guard hold(mutex_);
  if (state_ == State::kNone || state_ == State::kGone || comm_ == nullptr) return nullptr;
  state_ = State::kGone;
  return std::exchange(comm_, nullptr);
}

void Communicator::abort() noexcept {
  warn_of(caller_, "ncclCommAbort", [&](const NcclApi& api) {
    Comm comm = take();
    return comm == nullptr ? kNcclSuccess : api.ncclCommAbort(comm);
  });
}

void stop_all(const Communicators& communicators) noexcept {
  for (const auto& communicator : communicators) communicator->revoke();
  Communicators loud;
  for (const auto& communicator : communicators) {
    if (!communicator->await_revoked(kQuiesceLimit)) loud.push_back(communicator);
  }
  abort_all(loud);
}

void abort_all(const Communicators& communicators) noexcept {
  if (communicators.empty()) return;
  const Caller& caller = communicators.front()->caller();
  warn_of(caller, "ncclGroupStart", [](const NcclApi& api) { return api.ncclGroupStart(); });
  for (const auto& communicator : communicators) communicator->abort();
  warn_of(caller, "ncclGroupEnd", [](const NcclApi& api) { return api.ncclGroupEnd(); });
}

void close_all(const Communicators& communicators, Duration limit,
               const std::function<bool()>& is_over) noexcept {
  bool good = !is_over();
  for (const auto& communicator : communicators) good = good && communicator->finalize();
  for (const auto& communicator : communicators) {
    good = good && communicator->await_finalized(limit, is_over);
  }
  if (!good || is_over()) return abort_all(communicators);
  std::promise<void> destroyed;
  auto end = destroyed.get_future();
  std::vector<std::pair<Caller, Comm>> taken;
  for (const auto& communicator : communicators)
    taken.emplace_back(communicator->caller(), communicator->take());
  std::thread([taken, destroyed = std::move(destroyed)]() mutable {
    for (const auto& [caller, comm] : taken) {
      warn_of(caller, "ncclCommDestroy", [c = comm](const NcclApi& api) { return api.ncclCommDestroy(c); });
    }
    destroyed.set_value();
  }).detach();
  if (end.wait_for(limit) != std::future_status::ready) {
    log(LogLevel::kWarning, "ncclCommDestroy waits for another rank, and goes on to wait in the background");
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
