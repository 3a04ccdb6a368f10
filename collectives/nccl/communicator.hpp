/// One NCCL communicator and the stream that its operations run on.
///
/// Communicators are non-blocking: a call returns at once, perhaps in progress, and await_ready() polls
/// ncclCommGetAsyncError until it is done, the deadline is there or the group is over. So no call can hang
/// with its communicator, and stop_all() from another thread always gets through.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/nccl/errors.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::collectives::nccl {

/// How to wait for NCCL.
struct Patient {
  Duration limit{};
  std::function<void()> check;  ///< throws when the group is over; called in every turn
};

/// Sleeps as befits the `turn`-th look at something: not at all, then longer, up to a millisecond.
void pause_turn(unsigned turn);

/// Thread-safe: a lock is held during each call of NCCL that returns at once. The calls that block,
/// ncclCommAbort and ncclCommDestroy, are made without it: take() has made all others impossible by then.
class Communicator {
 public:
  /// Makes the stream. REQUIRES: the device of the group is current.
  Communicator(Caller caller, Patient patient);
  /// Aborts what was not closed.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // How it comes about: one of these, once, by every rank. They throw Unavailable, Timeout, or what `check`
  // throws.
  void init(int ranks, int rank, const UniqueId& id);
  /// The parent's ranks without `gone`, renumbered in order. The parent is idle, or was stopped by a revoke.
  /// If this fails, the parent is aborted.
  void shrink_from(Communicator& parent, std::vector<int> gone);
  /// The parent's ranks and new ones after them. `id` on rank 0 alone. As shrink_from otherwise.
  void grow_from(Communicator& parent, int ranks, const UniqueId* id);
  /// A new rank's side of grow_from.
  void join_grown(int ranks, int rank, const UniqueId& id);

  /// The id for grow_from. REQUIRES: the library has ncclCommGrow.
  UniqueId unique_id_to_grow();

  /// Issues the NCCL calls in `calls(comm)` as one group, and returns when they are on the stream. That may
  /// take until the peers have made their calls: a pair connects at its first message.
  template <class Calls>
  void issue(Calls calls) {
    begin(calls);
    await_ready({2 * patient_.limit, patient_.check});  // the operation's deadline is the core's
  }
  /// As issue, but returns at once: the calls are on the stream when is_ready() says so.
  template <class Calls>
  void begin(Calls calls) {
    const std::lock_guard hold(mutex_);
    require_usable();
    NCCL_TRY(caller_, caller_.api->nccl.ncclGroupStart());
    in_progress_ = true;
    try {
      calls(comm_);
    } catch (...) {
      (void)caller_.api->nccl.ncclGroupEnd();  // the first error is the one to tell
      throw;
    }
    NCCL_TRY(caller_, caller_.api->nccl.ncclGroupEnd());
  }
  /// Throws what NCCL reports.
  bool is_ready();
  /// One call on the communicator that is no operation: registering memory and the like.
  template <class Call>
  void with(Call call) {
    {
      const std::lock_guard hold(mutex_);
      require_usable();
      call(comm_);
    }
    await_ready();
  }

  /// What went wrong behind our back; empty: nothing so far.
  std::string async_error();
  // The end, in steps, for the functions below.
  /// Ends what is in flight by ncclCommRevoke, which leaves it good for shrink_from; later calls throw. Where
  /// that is not possible, as while a call is in progress, it is left for an abort.
  void revoke() noexcept;
  /// Whether it was revoked and is quiet, by the time `limit` is over.
  bool await_revoked(Duration limit) noexcept;
  /// Starts the orderly end. False: it has ended, or cannot.
  bool finalize() noexcept;
  bool await_finalized(Duration limit, const std::function<bool()>& is_over) noexcept;
  /// Hands out what is to be aborted or destroyed; null if nothing is left, or NCCL has yet to fill it in:
  /// whoever waits for that aborts it then.
  Comm take() noexcept;
  /// Frees it at once, whatever goes on. Nobody is waited for.
  void abort() noexcept;
  const Caller& caller() const { return caller_; }

  /// Whether shrink_from can start from it; `healthy`: whether grow_from can.
  bool can_shrink() const;
  bool healthy() const;
  Stream stream() const { return stream_; }

 private:
  enum class State { kNone, kUsable, kStopped, kRevoked, kGone };  // kStopped: to be aborted
  void require_usable() const;
  void await_ready();
  void await_ready(const Patient& patient);
  void await_child_of(Communicator& parent);
  void take_made();
  NcclCode poll();
  bool quiesce(const Patient& patient) noexcept;

  Caller caller_;
  Patient patient_;
  MonotonicClock clock_;
  mutable std::mutex mutex_;
  State state_ = State::kNone;
  bool was_ready_ = false;    ///< it has joined: before, there is nothing to revoke
  bool in_progress_ = false;  ///< a call has not been seen to end
  Comm comm_ = nullptr;
  Comm made_ = nullptr;  ///< written by NCCL, perhaps by a thread of its own after the call that makes it
  Stream stream_ = nullptr;
};

using Communicators = std::vector<std::shared_ptr<Communicator>>;

/// Ends what is in flight on this rank, on all before any is waited for: a kernel of one may wait for a
/// kernel of another. Those that do not become quiet are aborted.
void stop_all(const Communicators& communicators) noexcept;
/// As one group of calls, for the same reason.
void abort_all(const Communicators& communicators) noexcept;
/// The orderly end: flushes and destroys. If `is_over`, or if it takes longer than `limit`: abort_all. From
/// 2.31.2 on ncclCommDestroy waits without a limit for the other ranks' ncclCommDestroy, so that nobody may
/// call it once a rank has aborted (pytorch/pytorch#194775).
void close_all(const Communicators& communicators, Duration limit,
               const std::function<bool()>& is_over) noexcept;

}  // namespace troupe::collectives::nccl
