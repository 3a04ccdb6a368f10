/// Work: what is left of a call once it is launched.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"

namespace troupe::collectives {

namespace flight {
class FlightRecorder;
}

/// One operation in flight, or several that were launched together. Dropping it neither waits nor cancels:
/// its buffers stay until it is complete, or its group is gone or, aborted, quiet
/// (ProcessGroup::await_quiet). Used by one thread at a time. A backend gives advance(), and perhaps
/// hand_over(); all else is here.
class Work {
 public:
  Work() : Work(false) {}
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Returns when the result is in place; on a GPU, once the buffer's stream waits for that (nccl_group.hpp),
  /// which wait_for() and is_completed() then tell. Throws CollectiveAborted or Timeout. Calling it again
  /// returns, or throws the same, at once.
  void wait();
  /// As wait(), for no longer than `limit`: false means that the operation goes on; wait again.
  bool wait_for(Duration limit);
  /// Whether wait() would return or throw at once. Does what can be done without waiting, so polling it gets
  /// there.
  bool is_completed() { return drive(Duration::zero()); }
  /// What wait() throws; null while the operation goes on, and when it succeeded.
  std::exception_ptr exception() { return is_completed() ? thrown_ : nullptr; }
  /// Of a receive, once it is complete: whose message it took. Otherwise -1.
  virtual int source() const { return -1; }
  /// Whether its end was seen, without a look for it. Any thread.
  bool is_settled() const { return settled_.load(std::memory_order_acquire); }
  /// From its launch until this rank saw it complete; empty before, and in a group without a flight recorder
  /// (flight/flight_recorder.hpp), which takes no time.
  std::optional<Duration> duration() const;

  /// For the front: what becomes of it is told to `recorder`, whose numbers first and following are the
  /// operations of this Work, launched at `launched_at`.
  virtual void remember(std::shared_ptr<flight::FlightRecorder> recorder, std::uint64_t first,
                        std::size_t operations, Instant launched_at);

 protected:
  explicit Work(bool is_complete) : settled_(is_complete) {}
  /// Moves the operation for up to `limit` (zero: what can be done without waiting; Duration::max(): to its
  /// end). True: it is complete, or settle() was called. Throws what the operation failed with, unless that
  /// was settled. Not called again after either.
  virtual bool advance(Duration limit) = 0;
  /// In wait(): lets the device wait instead of the host. True: it does, and the host may go on.
  virtual bool hand_over() { return false; }

  /// For a backend that hears of the end by itself: ends the operation, with what wait() throws if it failed.
  /// The first call counts. Any thread; nothing is written to a disk.
  void settle(std::exception_ptr thrown) noexcept;

 private:
  struct Note {
    std::uint64_t first = 0;
    std::size_t operations = 0;
  };
  struct Remembered {
    std::shared_ptr<flight::FlightRecorder> recorder;
    std::vector<Note> notes;  ///< its operations, in runs of numbers
    Instant launched_at{0};
    Instant settled_at{0};
  };
  bool drive(Duration limit);
  void rethrow();
  void end(std::exception_ptr thrown) noexcept;
  void tell(const Note& note) const;
  void dump_failure() const;

  std::atomic<bool> settled_;
  std::mutex mutex_;  ///< for settle() and remember(); a backend that does not settle() has one thread
  std::exception_ptr thrown_;
  std::unique_ptr<Remembered> remembered_;  ///< null: no recorder remembers it
};

/// What it says of itself.
std::string text_of(const std::exception_ptr& thrown);

/// Work that is complete once `next` has run, after `work`: a chain of what to do then. Nothing runs by
/// itself: `next` runs once, on the thread that waits for or polls the returned Work first and finds `work`
/// complete. What it throws, and what `work` failed with, the returned Work throws; after a failure `next`
/// does not run. Drop it, and `next` never runs.
std::shared_ptr<Work> then(std::shared_ptr<Work> work, std::function<void()> next);

/// Work that was done when it was launched.
std::shared_ptr<Work> completed_work();

/// One Work of several, one an operation, which is complete when all are; it fails with the first that does.
/// Where all are the same, that one; of none, completed_work().
std::shared_ptr<Work> joined(std::vector<std::shared_ptr<Work>> parts);

}  // namespace troupe::collectives
