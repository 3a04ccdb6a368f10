/// What the parts of a group share: its failure, its operations in flight, and the threads that watch them.
///
/// An operation on a GPU has nobody waiting for it on the host, so two threads of the group look once a
/// millisecond. One asks the device: is the oldest operation done? The other asks the host: does NCCL report
/// an error, did another rank abort, is an operation late? The first of these to go wrong fails the group:
/// all operations that are not done get the error, and the second thread stops the communicators so that
/// their kernels leave the GPU. With a kernel stuck and the launch queue full every call of CUDA may block
/// (pytorch/pytorch#112518), so none is made under the lock, nor by the second thread.
///
/// An operation's time begins when what was on the streams of its buffers before it is done, or ten timeouts
/// after its launch.
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

#include "collectives/nccl/communicator.hpp"
#include "collectives/process_group.hpp"
#include "runtime/core/abort_word.hpp"

namespace troupe::collectives::nccl {

/// The communicators of a group, each with an order of its own.
inline constexpr int kCollectives = 0;
inline constexpr int kUp = 1;    ///< messages to higher ranks
inline constexpr int kDown = 2;  ///< messages to lower ranks
inline constexpr int kCommunicators = 3;

class Core;
class Messages;

/// Operations that are put on a stream together: messages, from when they are noted, or one collective, or a
/// batch of them. It is watched from its launch; it is on the stream once it has an event, which NCCL may
/// delay until other ranks have made the same call. Its end is seen by whoever waits for it or, by its event,
/// by the group's watching thread.
class PendingOp final : public Work {
 public:
  /// `messages`: what else is noted, which waiting issues; may be null.
  PendingOp(std::shared_ptr<Core> core, std::shared_ptr<Messages> messages, int at_index);

  void add(const Op& op);
  /// "all_reduce(sum, 7 x f32) #1 and 2 more".
  std::string name() const;

  std::vector<Op> ops;
  const int index;
  std::vector<Stream> joined;  ///< the streams of its buffers: what wait() makes wait
  Instant issued_at{0};        ///< or when what came before it on its streams was seen to be done
  /// It is part of a CUDA graph: what runs is its replays, so that nothing of it can be waited for or watched
  /// on the host.
  bool is_captured = false;

 private:
  friend class Core;
  bool advance(Duration limit) override;
  bool hand_over() override;
  void flush();

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<Messages> messages_;
  bool waits_on_host_ = false;  ///< the result of a barrier is that the host goes on
  // Guarded by the core's lock.
  std::vector<Event> after_;  ///< what was on those streams at its launch, as far as it is not done
  Event done_ = nullptr;      ///< null: it is not on the stream yet, or has settled
  /// With the check of calls: asked once, when the other ranks' calls are there; empty: they agree.
  Event compared_ = nullptr;
  std::function<std::string()> compare_;
};

/// Thread-safe, but for start, adopt and leave.
class Core {
 public:
  struct Facts {
    Caller caller;
    int device = 0;
    std::string name;  ///< of the group in errors
    Generation generation;
    Duration timeout{};
    /// Where aborts are told and heard of: NCCL has no channel for a reason.
    std::shared_ptr<ProcessGroup> host;
  };
  explicit Core(Facts facts);
  ~Core();

  const Facts& facts() const { return facts_; }
  const Api& api() const { return *facts_.caller.api; }
  /// Starts the watching threads.
  void start();
  /// A communicator to watch, and to stop when the group fails.
  void adopt(std::shared_ptr<Communicator> communicator);
  /// Stops watching, and settles what is still in flight as abandoned. The communicators of a group that
  /// failed are stopped when it returns.
  void leave();

  /// Throws the group's failure, if there is one.
  void check();
  bool failed() const;
  /// Fails the group on every rank. The first reason wins, here and elsewhere.
  void fail(AbortKind kind, const std::string& reason);
  /// Returns once a failed group's communicators are stopped, which takes bounded time. An operation throws
  /// before that.
  void await_stopped();
  /// Why it failed, on whichever rank, or what NCCL reports by now, which fails it; empty: it is good.
  std::string abort_reason();
  /// The first reason that a rank gave, which fails this one, too; empty while there is none. At an end NCCL
  /// is not asked: ranks that were faster may have gone.
  std::string reason_heard();

  /// Watches an operation from now on; notes what is on the streams of its buffers. Throws the group's
  /// failure.
  void expect(const std::shared_ptr<PendingOp>& pending);
  /// Makes `stream` wait for what was on the streams of its buffers.
  void await_inputs(PendingOp& pending, Stream stream);
  /// Gives an operation that is now on `stream` its event.
  void arm(PendingOp& pending, Stream stream);
  /// Whether it has its event, or has ended.
  bool is_armed(const PendingOp& pending) const;
  /// Lets `compare` be asked once what is on `stream` now is done.
  void compare(PendingOp& pending, Stream stream, std::function<std::string()> compare);
  /// Ends an operation that could not be put on the stream, with the group's failure if there is one.
  void drop(PendingOp& pending);
  /// Makes the streams of its buffers wait for it.
  void hand_over(const PendingOp& pending);

  /// Whether the operation has ended, well or not. Looks at the device. One that is done on it has failed if
  /// NCCL reports an error by then: what it gave up and what it did look alike.
  bool settle(PendingOp& pending);
  /// Polls settle until it is true, for no longer than `limit`.
  bool settle_within(PendingOp& pending, Duration limit);
  /// Waits until nothing is in flight; their deadlines bound that.
  void drain();

  Event record(Stream stream);
  bool is_capturing(Stream stream) const;
  /// Waits on the host for what is on `stream`, up to the group's timeout, whether the group has failed or
  /// not. Throws Timeout, or Unavailable for an error of CUDA.
  void synchronize(Stream stream);
  Instant now() const { return clock_.now(); }

 private:
  enum class Seen { kNo, kDone, kWrong };
  class InUse;
  void watch();
  void look_on();
  void stop_communicators(std::unique_lock<std::mutex>& hold);
  void look();
  void look_before(PendingOp& pending);
  void check_deadlines();
  std::optional<AbortReason> host_reason();
  void set_failure(const AbortReason& reason, bool mine);
  CudaCode query(Event event) const;
  Seen ask(const PendingOp& pending, Event event, std::string& wrong) const;
  void end(PendingOp& pending, std::exception_ptr thrown);
  void forget(const PendingOp& pending);
  void give_back(Event& event);
  void give_back_all(std::vector<Event>& events);

  const Facts facts_;
  MonotonicClock clock_;
  Communicators communicators_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<PendingOp>> pending_;  ///< not settled, oldest first
  std::array<Instant, kCommunicators> progress_at_{};
  std::optional<AbortReason> told_;  ///< the first that this rank told the host's group
  std::exception_ptr failure_;
  std::string reason_;
  std::vector<Event> events_;    ///< to be used again, once they are not in use
  std::vector<Event> in_use_;    ///< some thread's, in a call of CUDA
  Instant asking_since_{0};      ///< a call that the looking thread is in; 0: it is in none
  std::vector<Event> captured_;  ///< in graphs, and never to be asked
  bool stopped_ = false;         ///< the communicators, of a group that failed
  bool leaving_ = false;
  std::thread watcher_, looker_;
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
