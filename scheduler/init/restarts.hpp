/// When a process that died is started again, and when not any more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"

namespace troupe {

/// The restarts of one process: a pure machine. A start that fails is tried again like a death in mid-life;
/// what does not stay up is started ever more slowly, and after many failures in a row not at all.
class Restarts {
 public:
  struct Policy {
    Duration first = std::chrono::milliseconds(50);  ///< after the second failure in a row; doubles with each
    Duration longest = std::chrono::seconds(2);
    Duration settled = std::chrono::seconds(10);          ///< who was up this long did not die of its start
    Duration longest_blocked = std::chrono::seconds(10);  ///< the same, for who is blocked
    int most_starts = 6;                                  ///< starts in a row that do not come up
    int most_deaths = 20;  ///< failures in a row, starts and soon deaths together
  };

  /// Where a start or a life ended.
  enum class Failed : std::uint8_t {
    kStart,    ///< nothing of it ran
    kJoin,     ///< it ran, and did not take the process that it was started for
    kReady,    ///< it ran, and reported why it is not ready
    kRunning,  ///< it died without a report
  };
  /// What follows a failure.
  struct Next {
    std::optional<Duration> wait;  ///< until it is started again; nothing: it is not
    ErrorInfo why_not{};           ///< then
    bool is_permanent = false;     ///< the same start would fail again
  };

  Restarts() = default;
  explicit Restarts(const Policy& policy) : policy_(policy) {}

  /// It came up.
  void up(Instant now);
  /// It died, or did not come up. How long to wait before it is started again; nothing: it does not stay up.
  std::optional<Duration> died(Instant now, std::string why);
  /// It did not come up for want of something that comes back: the disk is full, the head is away. How long
  /// to wait before the next try. Never given up, and no failure of its own.
  Duration blocked(std::string why);

  /// died() or blocked(), by where and why it failed. What came up once waits for what may come back. What
  /// never did is given up where the same start would fail again: a port in use, a folder that is not ours. A
  /// start whose key the head has removed is given up in any case.
  /// `name` is for the error.
  Next failed(Instant now, const std::string& name, const ErrorInfo& why, Failed at);

  bool is_up() const { return up_since_.has_value(); }
  /// Why `name` is not started again. REQUIRES: died() said so.
  ErrorInfo gave_up(const std::string& name) const;

 private:
  Duration wait_after(int failures, Duration longest) const;

  Policy policy_;
  std::optional<Instant> up_since_;
  bool was_up_ = false;
  bool told_why_ = false;  ///< it did the last time that it failed
  int starts_ = 0;   ///< in a row that did not come up
  int deaths_ = 0;   ///< in a row, none of which was settled
  int blocked_ = 0;  ///< in a row
  std::string last_;
};

}  // namespace troupe
