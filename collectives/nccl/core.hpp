/// What the parts of a group share: its failure, its operations in flight, and the thread that watches them.
///
/// An operation on a GPU has nobody waiting for it on the host, so a thread of the group looks at every one
/// in flight once a millisecond: is it done, does NCCL report an error, did another rank abort, is it late?
/// The first of these to go wrong fails the group: all operations that are not done get the error, and the
/// communicators are stopped so that their kernels leave the GPU.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "collectives/nccl/abort_board.hpp"
#include "collectives/nccl/communicator.hpp"
#include "collectives/process_group.hpp"

namespace troupe::collectives::nccl {

/// The communicators of a group, each with an order of its own.
inline constexpr int kCollectives = 0;
inline constexpr int kUp = 1;    ///< messages to higher ranks
inline constexpr int kDown = 2;  ///< messages to lower ranks
inline constexpr int kCommunicators = 3;

class Core;
class Messages;

/// Operations that are put on a stream together: messages, from when they are noted, or one collective, or a
/// batch of them. Its end is seen by whoever waits for it or, by its event, by the group's watching thread.
class PendingOp final : public Work {
 public:
  /// `messages`: what else is noted, which waiting issues; may be null. `on_host`: wait() waits on the host.
  PendingOp(std::shared_ptr<Core> core, std::shared_ptr<Messages> messages, int at_index, bool waits_on_host);

  void add(const Op& op);
  /// "all_reduce(sum, 7 x f32) #1 and 2 more".
  std::string name() const;

  std::vector<Op> ops;
  const int index;
  std::vector<Stream> joined;  ///< the streams of its buffers: what wait() makes wait
  Instant issued_at{0};

 private:
  friend class Core;
  friend class CallCheck;
  bool advance(Duration limit) override;
  bool hand_over() override;
  void flush();

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<Messages> messages_;
  const bool on_host_;
  // Guarded by the core's lock.
  Event done_ = nullptr;
  /// With the check of calls: asked once, when the other ranks' calls are there; empty: they agree.
  Event compared_ = nullptr;
  std::function<std::string()> compare_;
};

/// Thread-safe, but for start, adopt and leave.
class Core {
 public:
  struct Facts {
    Caller caller;
    int size = 1;
    int device = 0;
    Generation generation;
    Duration timeout{};
    std::shared_ptr<AbortBoard> board;
  };
  explicit Core(Facts facts);
  ~Core();

  const Facts& facts() const { return facts_; }
  const Api& api() const { return *facts_.caller.api; }
  /// How to wait for NCCL in this group.
  Patient patient();

  /// Starts the watching thread.
  void start();
  /// A communicator to watch, and to stop when the group fails.
  void adopt(std::shared_ptr<Communicator> communicator);
  /// Stops watching, and settles what is still in flight as abandoned.
  void leave();

  /// Throws the group's failure, if there is one.
  void check();
  bool failed() const;
  /// Fails the group on every rank. The first reason wins, here and elsewhere.
  void fail(AbortKind kind, const std::string& reason);
  /// Returns once a failed group's communicators are stopped, which takes bounded time. An operation throws
  /// before that.
  void await_stopped();
  /// Ends the group on this rank alone, leaving the communicators as they are: another took its place.
  void retire(const std::string& reason);
  std::string abort_reason();

  /// Makes `on` wait for what is on `from` now.
  void join(Stream from, Stream on);
  /// Adds the operation that was put on `stream` to those that are watched.
  void track(std::shared_ptr<PendingOp> pending, Stream stream);
  /// Ends an operation that is not tracked, since it could not be put on the stream. REQUIRES: the
  /// group has failed.
  void drop(PendingOp& pending);
  /// Makes the streams of its buffers wait for it.
  void hand_over(const PendingOp& pending);

  /// Whether the operation has ended, well or not. Looks at the device.
  bool settle(PendingOp& pending);
  /// Polls settle until it is true, for no longer than `limit`.
  bool settle_within(PendingOp& pending, Duration limit);
  /// Waits until nothing is in flight; their deadlines bound that.
  void drain();

  Event record(Stream stream);
  /// Waits on the host for what is on `stream`, up to the group's timeout, whether the group has failed or
  /// not. Throws Timeout, or Unavailable for an error of CUDA.
  void synchronize(Stream stream);
  Instant now() const { return clock_.now(); }

 private:
  enum class Seen { kNo, kDone, kWrong };
  void watch();
  void tick();
  void check_deadlines();
  std::string reason_heard();
  void set_failure(const AbortReason& reason, bool mine);
  Seen look(PendingOp& pending, std::string& wrong);
  void end(PendingOp& pending, std::exception_ptr thrown);
  void give_back(Event& event);

  const Facts facts_;
  MonotonicClock clock_;
  std::vector<std::shared_ptr<Communicator>> communicators_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<PendingOp>> pending_;  ///< not settled, oldest first
  std::array<Instant, kCommunicators> progress_at_{};
  std::exception_ptr failure_;
  std::string reason_;
  std::vector<Event> events_;  ///< to be used again
  bool stopping_ = false;      ///< somebody stops the communicators of a group that failed
  bool leaving_ = false;
  std::thread watcher_;
};

/// Makes a device current for a scope.
class OnDevice {
 public:
  OnDevice(const Caller& caller, int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const Caller caller_;
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace troupe::collectives::nccl
