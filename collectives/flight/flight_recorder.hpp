/// The flight recorder of one rank in one group: its last operations, in a ring, and how they get out.
///
/// A launch costs a mutex nobody else wants and a few stores; nothing is allocated after
/// construction but the text of an error. The first failure writes a dump, and so may anybody at any time.
/// With a folder for timelines the ring is longer, and the group's end writes it there.
#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/flight/dump.hpp"
#include "collectives/process_group.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::collectives::flight {

constexpr std::size_t kRemembered = 1000;               ///< operations of a rank
constexpr std::size_t kRememberedOfTimeline = 100'000;  ///< the same, for a timeline

struct FlightOptions {
  /// What the group is called in dumps: the same on all its ranks, and unique to a run if the launcher has
  /// such a name, so that nobody lines up dumps of two runs.
  std::string group = "group";
  /// Where dumps go; without one as default_flight_folder() says, empty: nowhere.
  std::optional<std::string> folder;
  /// Where one goes when the group ends, whatever became of it, for `troupe flight-recorder --trace`; without
  /// one $TROUPE_TIMELINE, empty: nowhere.
  std::optional<std::string> timeline{};
};

/// Thread-safe. Operations are launched by one thread at a time; whoever waits may be another.
class FlightRecorder {
 public:
  FlightRecorder(const ProcessGroup& group, FlightOptions options);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Remembers that the rank launches `call`, and returns the operation's number. `now`: of the monotonic
  /// clock.
  std::uint64_t launch(const Op& call, Instant now);
  /// The launch threw: its sequence number is given again. `group_failed`: since the group had failed; that
  /// dumps, too.
  void refused(std::uint64_t number, std::string_view error, bool group_failed);
  /// Somebody waits for these, on the host; or a stream of the GPU does.
  void waiting(std::uint64_t first, std::size_t operations = 1);
  void enqueued(std::uint64_t first, std::size_t operations = 1);
  /// These are complete, or failed with `error`. Writes nothing, so that locks may be held.
  void ended(std::uint64_t first, std::size_t operations, Duration took, std::string_view error = {});
  /// Writes the group's one dump of an error, unless that was done, or this is a trainer's end
  /// (is_told_to_end) after operations that are all complete. Never throws: what goes wrong with the dump is
  /// logged.
  void dump_failure(std::string_view reason);

  /// What is remembered now.
  Dump snapshot(std::string_view reason) const;
  /// Writes a snapshot and returns the file's path. An empty `folder` is the recorder's own. Errors: kIo,
  /// kRefused (see write_dump), kBadConfig (there is no folder).
  Result<std::string> dump(std::string_view reason, const std::string& folder = {}) const;

  /// Dumps every recorder of this process, and returns the paths. For programs that want it on a signal or a
  /// request: call it from a thread (a signalfd, a pipe), never in a signal handler. The first error is
  /// returned once all have been tried.
  static Result<std::vector<std::string>> dump_all(std::string_view reason, const std::string& folder = {});

  /// What the ends of this process's groups would leave as timelines, for one that is done and may be killed
  /// before those. Never throws: what goes wrong is logged.
  static void leave_timelines();

 private:
  Operation* find(std::uint64_t number);
  /// Never throws: what goes wrong is logged, once a process.
  void leave(std::string_view reason, const std::string& folder) const;
  /// If there is a folder for them, and anything to tell.
  void leave_timeline(std::string_view reason) const;
  /// REQUIRES: mutex_ is held.
  bool all_completed() const;
  void note(std::uint64_t first, std::size_t operations, State from, State to);

  const int rank_;
  const int size_;
  const Generation generation_;
  const std::string backend_;
  const FlightOptions options_;
  const std::string timeline_;  ///< the folder; empty: none
  const MonotonicClock clock_;
  const std::int64_t formed_ns_;

  mutable std::mutex mutex_;
  std::vector<Operation> ring_;  ///< operation n is at n modulo its size
  std::uint64_t launched_ = 0;
  std::uint64_t collectives_ = 0;
  bool dumped_ = false;
};

/// Lets a recorder remember every operation of `group`, which launched none before, and returns it; the group
/// keeps it, and ProcessGroup::recorder() gives it back. The first operation that fails, or an abort on this
/// rank, leaves a dump (see FlightOptions). A launch that is refused (BadConfig, BadInput, a limit) is
/// remembered and leaves none.
std::shared_ptr<FlightRecorder> record(ProcessGroup& group, FlightOptions options = {});

}  // namespace troupe::collectives::flight
