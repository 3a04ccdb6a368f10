#include "collectives/nccl/communicator.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "collectives/texts.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives::nccl {

using namespace std::chrono_literals;

/// Outlives the communicator while a call of it is in the library.
struct Handle {
  /// kNone: not made yet. kStopped: to be aborted.
  enum class State { kNone, kUsable, kStopped, kRevoked, kGone };

  Handle(Caller of, int its_device) : caller(of), device(its_device) {}
  void leave() {
    const std::lock_guard hold(mutex);
    --inside;
    left.notify_all();
  }
  void await_left() {
    std::unique_lock hold(mutex);
    left.wait(hold, [&] { return inside == 0; });
  }
  /// Hands out what is to be aborted or destroyed; null if nothing is left.
  Comm take() {
    const std::lock_guard hold(mutex);
    if (comm != nullptr) state = State::kGone;
    return std::exchange(comm, nullptr);
  }

  const Caller caller;
  const int device;
  std::mutex mutex;
  std::condition_variable left;
  State state = State::kNone;
  int inside = 0;  ///< threads in a call of the library
  Comm comm = nullptr;
};

namespace {

using State = Handle::State;
using Handles = std::vector<std::shared_ptr<Handle>>;
/// What calls are made with, or what was taken to be ended: an abort empties the handle, and frees the
/// communicator once it is left.
struct Held {
  std::shared_ptr<Handle> handle;
  Comm comm = nullptr;
};

/// How long a revoked communicator has to become quiet before it is aborted.
constexpr Duration kQuiesceLimit = 2s;
/// How long an abort is waited for. A kernel that was told to end takes far less.
constexpr Duration kAbortLimit = 30s;

/// The code of a call of the end, whose failure nobody can do anything about. Whether it succeeded.
bool warn_of(const Caller& caller, const char* name, NcclCode code) {
  if (code == kNcclSuccess) return true;
  log(LogLevel::kWarning, std::string(name) + " failed on rank " + std::to_string(caller.rank) +
                              " with code " + std::to_string(code));
  return false;
}

/// Calls that may block in the library, on a thread of their own. Nobody has to wait for their end. A thread
/// begins on device 0, to which NCCL returns after a call, making a context there: it is set to the
/// communicator's.
class Aside {
 public:
  /// `calls` get what setting the device said.
  Aside(const Handle& of, std::function<void(CudaCode)> calls) {
    std::packaged_task<void()> task([api = of.caller.api, device = of.device, calls = std::move(calls)] {
      calls(api->cuda.cudaSetDevice(device));
    });
    ended_ = task.get_future();
    start_quiet_thread(std::move(task)).detach();
  }
  bool ends_within(Duration limit) const { return ended_.wait_for(limit) == std::future_status::ready; }

 private:
  std::future<void> ended_;
};

/// Polls until it ends; throws what `patient.check` throws, and false once the limit is over.
bool ends_within(const Aside& aside, const Patient& patient) {
  const MonotonicClock clock;
  const Instant deadline = clock.now() + patient.limit;
  for (unsigned turn = 0; !aside.ends_within(Duration::zero()); ++turn) {
    patient.check();
    if (clock.now() > deadline) return false;
    pause_turn(turn);
  }
  return true;
}

/// The calls of `body(api)` as one group.
template <class Body>
void in_group(const Caller& caller, Body body) {
  const NcclApi& api = caller.api->nccl;
  warn_of(caller, "ncclGroupStart", api.ncclGroupStart());
  body(api);
  warn_of(caller, "ncclGroupEnd", api.ncclGroupEnd());
}

Handles handles_of(const Communicators& communicators) {
  Handles handles;
  for (const auto& communicator : communicators) handles.push_back(communicator->handle());
  return handles;
}

/// In a group ncclCommAbort raises its flag at once, and the group's end frees. In between, calls that other
/// threads are in see the flag and return; what they use is there until then.
void abort_handles(const Handles& handles) {
  std::vector<Held> taken;
  for (const auto& handle : handles) {
    if (Comm comm = handle->take()) taken.push_back({handle, comm});
  }
  if (taken.empty()) return;
  const Aside aborts(*taken.front().handle, [taken](CudaCode) {
    const Caller& caller = taken.front().handle->caller;
    in_group(caller, [&](const NcclApi& api) {
      for (const Held& held : taken) warn_of(caller, "ncclCommAbort", api.ncclCommAbort(held.comm));
      for (const Held& held : taken) held.handle->await_left();
    });
  });
  if (!aborts.ends_within(kAbortLimit)) {
    log(LogLevel::kWarning, "ncclCommAbort waits for the device, and goes on to wait in the background");
  }
}

/// Revokes what no other thread is in a call with, and leaves it. REQUIRES: there is something. Raises all
/// flags before it waits, as a group of calls does.
void revoke(const std::vector<Held>& all) {
  const Caller& caller = all.front().handle->caller;
  std::vector<Held> revoked;
  in_group(caller, [&](const NcclApi& api) {
    for (const Held& held : all) {
      if (warn_of(caller, "ncclCommRevoke", api.ncclCommRevoke(held.comm))) revoked.push_back(held);
    }
  });
  for (const auto& [handle, comm] : revoked) {
    // NCCL's error of a peer's death may stay for good: what reports it is not quiet.
    NcclCode error = kNcclSuccess;
    const NcclCode asked = caller.api->nccl.ncclCommGetAsyncError(comm, &error);
    const std::lock_guard hold(handle->mutex);
    if (asked == kNcclSuccess && error == kNcclSuccess && handle->state == State::kStopped)
      handle->state = State::kRevoked;
  }
  for (const Held& held : all) held.handle->leave();
}

[[noreturn]] void throw_ended(const Caller& caller, State state) {
  throw_error({ErrorCode::kAborted, "the communicator of rank " + std::to_string(caller.rank) + " has ended",
               state == State::kRevoked ? "it was revoked" : "it was aborted or closed",
               "make another group: by rebuild(), succeed_nccl_group or from scratch"});
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

Communicator::Visit::Visit(const Communicator& of, bool to_shrink) : handle_(of.handle_) {
  const std::lock_guard hold(handle_->mutex);
  const State state = handle_->state;
  if (state != State::kUsable && !(to_shrink && state == State::kRevoked)) throw_ended(of.caller_, state);
  ++handle_->inside;
  comm_ = handle_->comm;
}

Communicator::Visit::~Visit() {
  handle_->leave();
}

Communicator::Communicator(Caller caller) : caller_(caller) {
  int device = 0;
  CUDA_TRY(caller_, caller_.api->cuda.cudaGetDevice(&device));
  handle_ = std::make_shared<Handle>(caller, device);
  CUDA_TRY(caller_, caller_.api->cuda.cudaStreamCreate(&stream_));
}

Communicator::~Communicator() {
  abort_handles({handle_});
  if (caller_.api->cuda.cudaStreamDestroy(stream_) != kCudaSuccess) {
    log(LogLevel::kWarning, "cudaStreamDestroy failed on rank " + std::to_string(caller_.rank));
  }
}

void Communicator::init(const Patient& patient, int ranks, int rank, const UniqueId& id) {
  make(patient, "ncclCommInitRankConfig", nullptr, [ranks, rank, id](const NcclApi& api, Comm, Comm* made) {
    return api.ncclCommInitRankConfig(made, ranks, id, rank, kBlocking);
  });
}

void Communicator::shrink_from(const Patient& patient, Communicator& parent, std::vector<int> gone) {
  make(patient, "ncclCommShrink", &parent, [gone](const NcclApi& api, Comm from, Comm* made) mutable {
    return api.ncclCommShrink(from, gone.data(), static_cast<int>(gone.size()), made, kBlocking);
  });
}

/// The call returns when all ranks have made it. NCCL fills in `made` before that, perhaps, and then an abort
/// of it ends the call; an abort of the parent does, too.
void Communicator::make(const Patient& patient, const char* name, const Communicator* parent, MakeCall call) {
  struct Attempt {
    Comm made = nullptr;
    NcclCode code = kNcclSuccess;
    Comm seen() { return std::atomic_ref(made).load(std::memory_order_acquire); }
  };
  const auto attempt = std::make_shared<Attempt>();
  auto way = parent != nullptr ? std::make_shared<Visit>(*parent, true) : nullptr;
  const auto attempts = std::make_shared<Aside>(
      *handle_,
      [attempt, way = std::move(way), call = std::move(call), api = caller_.api](CudaCode on_device) mutable {
        attempt->code = on_device != kCudaSuccess
                            ? kNcclUnhandledCudaError
                            : call(api->nccl, way ? way->comm() : nullptr, &attempt->made);
        way.reset();  // whoever aborts the parent waits for this
      });
  const auto give_up = [&] {
    if (parent != nullptr) abort_handles({parent->handle_});
    const Aside ends(*handle_, [attempt, attempts, caller = caller_](CudaCode) {
      in_group(caller, [&](const NcclApi& api) {
        const auto end = [&](Comm comm) {
          if (comm != nullptr) warn_of(caller, "ncclCommAbort", api.ncclCommAbort(comm));
          return comm;
        };
        // The call may not have been entered yet: NCCL fills in `made` at any time from then on.
        Comm early = end(attempt->seen());
        const MonotonicClock clock;
        Instant told = clock.now();
        while (!attempts->ends_within(10ms)) {
          if (early == nullptr) early = end(attempt->seen());
          if (clock.now() - told < kAbortLimit) continue;
          told = clock.now();
          log(LogLevel::kWarning, "NCCL does not give up an attempt to make a communicator");
        }
        if (early == nullptr) end(attempt->seen());
      });
    });
    ends.ends_within(kQuiesceLimit);
  };
  bool in_time = false;
  try {
    in_time = ends_within(*attempts, patient);
  } catch (...) {
    give_up();
    throw;
  }
  if (!in_time || attempt->code != kNcclSuccess) {
    const NcclCode code = in_time ? attempt->code : kNcclSuccess;
    give_up();
    if (in_time) throw_nccl(caller_, name, code);
    throw_error({ErrorCode::kTimeout,
                 "NCCL was not ready on rank " + std::to_string(caller_.rank) + " after " +
                     seconds_text(patient.limit),
                 "a rank is missing, or a network interface that NCCL chose is not reachable",
                 "see that every rank runs; NCCL_DEBUG=INFO shows the interfaces"});
  }
  const std::lock_guard hold(handle_->mutex);
  handle_->comm = attempt->made;
  handle_->state = State::kUsable;
}

std::string Communicator::async_error() {
  const std::lock_guard hold(handle_->mutex);
  if (handle_->state != State::kUsable && handle_->state != State::kRevoked) return {};
  const NcclApi& api = caller_.api->nccl;
  NcclCode code = kNcclSuccess;
  const NcclCode asked = api.ncclCommGetAsyncError(handle_->comm, &code);
  if (asked != kNcclSuccess) code = asked;
  if (code == kNcclSuccess || code == kNcclInProgress) return {};
  const char* last = api.ncclGetLastError(handle_->comm);
  return "ncclCommGetAsyncError on rank " + std::to_string(caller_.rank) + ": " +
         api.ncclGetErrorString(code) + " (code " + std::to_string(code) + ")" +
         (last != nullptr && *last != '\0' ? std::string(": ") + last : "");
}

bool Communicator::can_shrink() {
  {
    const std::lock_guard hold(handle_->mutex);
    if (!caller_.api->nccl.ncclCommShrink || handle_->state != State::kRevoked) return false;
  }
  return async_error().empty();
}

bool Communicator::healthy() const {
  const std::lock_guard hold(handle_->mutex);
  return handle_->state == State::kUsable;
}

void stop_all(const Communicators& communicators) noexcept {
  std::vector<Held> quiet;
  Handles loud;
  for (const auto& handle : handles_of(communicators)) {
    const std::lock_guard hold(handle->mutex);
    if (handle->state != State::kUsable) continue;
    handle->state = State::kStopped;
    // A call that is going on would be left behind by a revoke, and the communicator never become quiet.
    if (handle->caller.api->nccl.ncclCommRevoke && handle->inside == 0) {
      ++handle->inside;
      quiet.push_back({handle, handle->comm});
    } else {
      loud.push_back(handle);
    }
  }
  std::optional<Aside> revokes;
  if (!quiet.empty()) revokes.emplace(*quiet.front().handle, [quiet](CudaCode) { revoke(quiet); });
  abort_handles(loud);
  if (revokes && !revokes->ends_within(kQuiesceLimit)) {
    log(LogLevel::kWarning, "ncclCommRevoke does not end: the communicator is aborted instead");
  }
  Handles not_revoked;
  for (const Held& held : quiet) {
    const std::lock_guard hold(held.handle->mutex);
    if (held.handle->state != State::kRevoked) not_revoked.push_back(held.handle);
  }
  abort_handles(not_revoked);
}

void abort_all(const Communicators& communicators) noexcept {
  abort_handles(handles_of(communicators));
}

void close_all(const Communicators& communicators, Duration limit,
               const std::function<bool()>& is_over) noexcept {
  const Handles handles = handles_of(communicators);
  const bool good = !is_over() && std::all_of(communicators.begin(), communicators.end(),
                                              [](const auto& c) { return c->healthy(); });
  if (!good || handles.empty()) return abort_handles(handles);
  const auto& caller = handles.front()->caller;
  std::vector<Held> all;
  for (const auto& handle : handles) {
    const std::lock_guard hold(handle->mutex);
    ++handle->inside;
    all.push_back({handle, handle->comm});
  }
  const auto flushed = std::make_shared<std::atomic<bool>>(true);
  const Aside finalizes(*handles.front(), [all, flushed, caller](CudaCode) {
    in_group(caller, [&](const NcclApi& api) {
      for (const Held& held : all) {
        if (!warn_of(caller, "ncclCommFinalize", api.ncclCommFinalize(held.comm))) *flushed = false;
      }
    });
    for (const Held& held : all) held.handle->leave();
  });
  const MonotonicClock clock;
  const Instant deadline = clock.now() + limit;
  for (unsigned turn = 0; !finalizes.ends_within(Duration::zero()); ++turn) {
    if (is_over() || clock.now() > deadline) return abort_handles(handles);
    pause_turn(turn);
  }
  if (!*flushed || is_over()) return abort_handles(handles);
  std::vector<Comm> taken;
  for (const auto& handle : handles) taken.push_back(handle->take());
  const Aside destroys(*handles.front(), [taken, caller](CudaCode) {
    for (Comm comm : taken) warn_of(caller, "ncclCommDestroy", caller.api->nccl.ncclCommDestroy(comm));
  });
  if (!destroys.ends_within(limit)) {
    log(LogLevel::kWarning, "ncclCommDestroy waits for another rank, and goes on to wait in the background");
  }
}

}  // namespace troupe::collectives::nccl
