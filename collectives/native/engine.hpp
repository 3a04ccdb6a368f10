/// What moves the operations of one rank forward: the lock around its four parts, and the order in which they
/// are asked.
///
///   Rounds     collectives, in rounds: arrived, reduced, completed
///   Gateways   the connections with other hosts
///   Messages   sends and receives
///   Waiting    deadlines, who is missing, where to sleep
///
/// A thread that waits for anything moves everything of its rank, and of other groups of its process
/// (process_engines.hpp). A rank whose program computes may have a thread that does so (start_serving).
///
/// Thread-safety: a lock; a thread in wait() keeps it, and leaves within a slice of sleep once the group
/// aborts.
///
/// Invariant: whoever throws for an aborted group has told the other hosts why.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/native/backoff.hpp"
#include "collectives/native/native_group.hpp"
#include "collectives/native/process_engines.hpp"
#include "collectives/native/spin_lock.hpp"
#include "collectives/native/waiting.hpp"
#include "runtime/core/fork_guard.hpp"

namespace troupe::collectives {

class Engine {
 public:
  /// `options` are valid (native_group.cpp); `region` is attached.
  Engine(NativeGroupOptions options, Region region);

  /// See ProcessGroup::reserve.
  std::vector<std::byte*> reserve(std::size_t count, DType dtype, bool tree);
  /// Gives back what reserve() gave, not for a tree. False: an operation is at it; nothing: reserve() did not
  /// give it, or it was given back.
  std::optional<bool> release(std::byte* at);

  /// Starts an operation, which was completed, checked and numbered (check_op.hpp).
  Token launch(const Op& call);
  /// The messages of an all_to_all_v, which was launched.
  std::vector<Token> post_parts(const Op& call);
  /// As Rounds::launch_packed.
  Token launch_packed(std::span<const Op> calls);

  /// Moves everything until `token` is complete, for up to `limit` (zero: does what can be done without
  /// waiting); whether it is complete. Throws CollectiveAborted and Timeout.
  bool wait(const Token& token, Duration limit);

  /// The ranks that `token` waits for, ascending; none if it is complete.
  std::vector<int> missing(const Token& token);

  void abort(AbortKind kind, const std::string& reason);
  std::string abort_reason();
  /// Returns once no thread moves an operation of this rank.
  void await_quiet() { const std::lock_guard lock(mutex_); }
  /// The group is destroyed: others must not wait for this rank.
  void leave();
  /// For a thread that waits in another group: does what can be done without waiting, unless another thread
  /// is at it; whether anything moved. `all`: takes what was sent eagerly, too. An error is in the abort
  /// word.
  bool move_beside(bool all);

  /// Starts the thread that moves everything while nobody waits.
  ///
  /// Whoever waits serves itself, and faster, so the thread sleeps for as long. It looks a thousand times a
  /// second while operations are in flight, and else wakes for what comes over a connection and, within a
  /// host, for a launch.
  void start_serving();

 private:
  /// Runs what may find the group aborted, or abort it: then other hosts are told.
  template <class F>
  auto telling(F body) {
    try {
      return body();
    } catch (const Error&) {
      if (view_.is_aborted()) gateways_.tell_abort();
      throw;
    }
  }
  template <class Start>
  Token launch_rounds(Duration timeout, Start start);
  Token post(const Op& call);
  bool advance();
  bool drive(const Token& token, Duration limit = Duration::max());
  bool is_busy() const { return !rounds_.empty() || messages_.oldest() != nullptr; }
  std::string name_of_oldest() const;
  void note_launch();
  void serve();
  bool serve_once();
  void wake_server();

  const ForkGuard fork_guard_;
  const RankView view_;
  MonotonicClock clock_;
  Backoff::Credit spin_credit_;

  std::atomic<std::uint32_t> waiting_threads_{0};  ///< in wait(): they serve
  UniqueFd wake_;                                  ///< written to wake the server
  std::atomic<bool> stops_{false};                 ///< the server ends
  std::atomic<bool> dozes_{false};                 ///< the server looks seldom, and wants to hear of a launch
  std::thread server_;
  Instant served_at_{0};  ///< when something last moved there, or was launched

  SpinLock mutex_;  ///< of what follows
  RoundData data_;
  Rounds rounds_;
  AnyReceives any_receives_;
  Gateways gateways_;
  Messages messages_;
  Waiting waiting_;
  /// Messages from and to this rank's data; those that are done go with the next one.
  std::vector<std::shared_ptr<const Transfer>> transfers_;

  std::optional<EngineEntry> entry_;  ///< last, and opened and closed under mutex_
};

}  // namespace troupe::collectives
