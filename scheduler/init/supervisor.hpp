/// Keeps processes of ours up: starts each, waits for its first word, and starts it again when it dies.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/node/child.hpp"
#include "runtime/wire/messages.hpp"
#include "scheduler/init/restarts.hpp"

namespace troupe {

/// Heads and nodes say something each second (wire::Pulse): who has not for so long hangs, or is stopped.
/// Longer than nodes take to say that the head does not answer: a head that is only late costs a restart.
inline constexpr Duration kMostSilence = std::chrono::seconds(10);

/// Waits `grace` for a child that was told to leave, kills it if it is still there, and reaps it.
void end_child(const Child& child, Duration grace);

/// All of it happens in the thread that calls run(): children die with the thread that started them. Never
/// waits for one child while another one needs something.
///
/// A role that came up once is not given up for want of what may come back: a full disk, or the head that it
/// joins.
class Supervisor {
 public:
  struct Role {
    std::string name;  ///< for people: "the head", "node 1"
    /// Starts it and sends its configuration. A troupe::Error is a start that failed.
    std::function<Child()> start;
    std::function<bool()> may_start = [] { return true; };
    /// It said Ready. It may move the link out of the child: then nobody here reads it. A troupe::Error is a
    /// start that failed.
    std::function<void(Child& child, const std::string& address)> on_ready = [](auto&, auto&) {};
    /// What it says after that.
    std::function<void(wire::Control message)> on_message = [](auto) {};
    /// It is gone; it is started again unless failure() says otherwise.
    std::function<void(const std::string& how)> on_death = [](auto&) {};
    /// Its death is its end: it is not started again.
    std::function<bool()> is_over = [] { return false; };
    /// It says something every second. Killed when it has not for so long; 0: it need not. Counted in looks
    /// at it, a second apart: a program that was stopped itself looks once, after it has read what came.
    Duration silence{};
    bool vital = true;  ///< when it does not stay up, run() ends with failure()
    Restarts::Policy policy;
  };

  Supervisor() = default;
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// A number for the role, in order from 0.
  std::size_t add(Role role);
  /// Until `wake` is readable, or a vital role does not stay up, or `done` says so after something happened.
  void run(
      int wake, const std::function<bool()>& done = [] { return false; });
  /// From now on a death is a goodbye: nothing is started again. Any thread may call it.
  void expect_end() { ending_ = true; }
  /// Every role has said Ready and lives.
  bool all_up() const;
  /// Why run() ended by itself.
  const std::optional<ErrorInfo>& failure() const { return failure_; }

  /// Calls `then` in run()'s thread once `fd` is readable. One at a time; -1: none any more.
  void watch(int fd, std::function<void()> then = {});
  /// False if it is not there.
  bool tell(std::size_t role, const wire::Control& message);
  /// Of its latest life, over or not; -1 before the first.
  pid_t pid(std::size_t role) const { return entries_.at(role)->pid; }
  /// Tells these to leave, all at once, and closes their links; kills who is still there after `grace`.
  void end(const std::vector<std::size_t>& roles, Duration grace);

 private:
  struct Entry {
    Role role;
    Restarts restarts;
    std::optional<Child> child;
    pid_t pid = -1;
    Instant started{};
    int silent_looks = 0;                    ///< since it said something
    std::optional<ErrorInfo> not_ready;      ///< what it said before it ends
    std::optional<Instant> due = Instant{};  ///< when it is started next
  };

  void start_due(Instant now);
  void take_up(Entry& entry, const std::string& address, Instant now);
  static void not_up(Entry& entry, ErrorInfo why);
  void failed(Entry& entry, Instant now, const ErrorInfo& why, Restarts::Failed at);
  void died(Entry& entry, Instant now);
  void read_link(Entry& entry, Instant now);
  void look_for_silence(Instant now);
  int wait_ms(Instant now) const;

  MonotonicClock clock_;
  Instant next_look_{};  ///< at roles that must not be silent
  std::vector<std::unique_ptr<Entry>> entries_;
  int watched_ = -1;
  std::function<void()> on_watched_;
  std::optional<ErrorInfo> failure_;
  std::atomic<bool> ending_{false};
};

}  // namespace troupe
