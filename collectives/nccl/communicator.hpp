/// One NCCL communicator and the stream that its operations run on.
///
/// Communicators are non-blocking: a call returns at once, perhaps in progress, and await_ready() polls
/// ncclCommGetAsyncError until it is done, the deadline is there or the group is over. So no call can hang
/// with its communicator, and stop() from another thread always gets through.
#pragma once

#include <functional>
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

/// Thread-safe: a lock is held during each call of NCCL and never while waiting.
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

  /// Issues the NCCL calls in `calls(comm)` as one group, and returns when they are on the stream.
  template <class Calls>
  void issue(Calls calls) {
    {
      const std::lock_guard hold(mutex_);
      require_usable();
      NCCL_TRY(caller_, caller_.api->nccl.ncclGroupStart());
      try {
        calls(comm_);
      } catch (...) {
        (void)caller_.api->nccl.ncclGroupEnd();  // the first error is the one to tell
        throw;
      }
      NCCL_TRY(caller_, caller_.api->nccl.ncclGroupEnd());
    }
    await_ready();
  }
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
  /// Ends what is in flight, on this rank: by ncclCommRevoke, which leaves it good for shrink_from, else by
  /// ncclCommAbort. Never throws; later calls do nothing.
  void stop() noexcept;
  /// The orderly end: flushes and destroys; aborts if that takes longer than `limit`.
  void close(Duration limit) noexcept;
  /// Frees it at once, whatever goes on. Nobody is waited for.
  void abort() noexcept;

  /// Whether shrink_from can start from it; `healthy`: whether grow_from can.
  bool can_shrink() const;
  bool healthy() const;
  Stream stream() const { return stream_; }

 private:
  enum class State { kNone, kUsable, kRevoked, kGone };
  void require_usable() const;
  void await_ready();
  void await_ready(const Patient& patient);
  void await_child_of(Communicator& parent);
  void take_made();
  NcclCode poll();
  bool quiesce(Duration limit) noexcept;
  void abort_locked() noexcept;

  Caller caller_;
  Patient patient_;
  MonotonicClock clock_;
  mutable std::mutex mutex_;
  State state_ = State::kNone;
  bool was_ready_ = false;  ///< it has joined: before, there is nothing to revoke
  Comm comm_ = nullptr;
  Comm made_ = nullptr;  ///< written by NCCL, perhaps by a thread of its own after the call that makes it
  Stream stream_ = nullptr;
};

}  // namespace troupe::collectives::nccl
