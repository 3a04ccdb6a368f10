/// One NCCL communicator and the stream that its operations run on.
///
/// Communicators are blocking: NCCL starts a thread for every group of calls on one that is not, which takes
/// longer than a small operation. So a call may wait inside the library for other ranks, as the first one
/// between two ranks does, which connects them. No lock is held meanwhile, and an abort gets through: it
/// raises NCCL's flag, waits until every call has seen it, and then frees the communicator.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/nccl/errors.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::collectives::nccl {

/// How to wait until a communicator is made.
struct Patient {
  Duration limit{};
  std::function<void()> check;  ///< throws when it is not to be; called in every turn
};

struct Handle;  // communicator.cpp: NCCL's handle, and who is in a call with it

/// Sleeps as befits the `turn`-th look at something: not at all, then longer, up to a millisecond.
void pause_turn(unsigned turn);

/// Thread-safe. Operations of one communicator are issued by one thread at a time.
class Communicator {
 public:
  /// Makes the stream. REQUIRES: the device of the group is current.
  explicit Communicator(Caller caller);
  /// Aborts what was not closed.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // How it comes about: one of these, once, by every rank. They throw Unavailable, Timeout, or what `check`
  // throws.
  void init(const Patient& patient, int ranks, int rank, const UniqueId& id);
  /// The parent's ranks without `gone`, renumbered in order. REQUIRES: parent.can_shrink(). If this is given
  /// up, the parent is aborted.
  void shrink_from(const Patient& patient, Communicator& parent, std::vector<int> gone);

  /// Issues the NCCL calls in `calls(comm)` as one group, and returns when they are on the stream. That takes
  /// until the peers have made their calls where a pair connects, or until an abort.
  template <class Calls>
  void issue(Calls calls) {
    const Visit visit(*this);
    NCCL_TRY(caller_, caller_.api->nccl.ncclGroupStart());
    try {
      calls(visit.comm());
    } catch (...) {
      (void)caller_.api->nccl.ncclGroupEnd();  // the first error is the one to tell
      throw;
    }
    NCCL_TRY(caller_, caller_.api->nccl.ncclGroupEnd());
  }
  /// Calls on the communicator that are no operations: registering memory and the like.
  template <class Call>
  void with(Call call) {
    const Visit visit(*this);
    call(visit.comm());
  }

  /// What went wrong behind our back; empty: nothing so far.
  std::string async_error();
  const std::shared_ptr<Handle>& handle() const { return handle_; }
  /// Whether shrink_from can start from it: it was stopped by a revoke, and reports no error.
  bool can_shrink();
  /// Whether it has neither failed nor ended.
  bool healthy() const;
  Stream stream() const { return stream_; }

 private:
  /// A thread's way through the library: what it holds is not freed meanwhile.
  class Visit {
   public:
    /// `to_shrink`: a revoked one will do. Throws where no call is possible any more.
    explicit Visit(const Communicator& of, bool to_shrink = false);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    Comm comm() const { return comm_; }

   private:
    std::shared_ptr<Handle> handle_;
    Comm comm_ = nullptr;
  };
  /// Of the parent, or null, and where the new one goes.
  using MakeCall = std::function<NcclCode(const NcclApi& api, Comm parent, Comm* made)>;
  void make(const Patient& patient, const char* name, const Communicator* parent, MakeCall call);

  Caller caller_;
  std::shared_ptr<Handle> handle_;
  Stream stream_ = nullptr;
};

using Communicators = std::vector<std::shared_ptr<Communicator>>;

/// Ends what is in flight on this rank, on all before any is waited for: a kernel of one may wait for a
/// kernel of another. By ncclCommRevoke, which leaves them good for shrink_from; those that a call is in, and
/// those that do not become quiet, are aborted. Later calls on them throw.
void stop_all(const Communicators& communicators) noexcept;
/// Frees them, whatever goes on, as one group of calls for the same reason. Waits until the kernels have left
/// the device, for at most 30 s; after that the end goes on in the background, with a warning.
void abort_all(const Communicators& communicators) noexcept;
/// The orderly end: flushes and destroys. If `is_over`, or if it takes longer than `limit`: abort_all. From
/// 2.31.2 on ncclCommDestroy waits without a limit for the other ranks' ncclCommDestroy, so that nobody may
/// call it once a rank has aborted (pytorch/pytorch#194775).
void close_all(const Communicators& communicators, Duration limit,
               const std::function<bool()>& is_over) noexcept;

}  // namespace troupe::collectives::nccl
