/// One thread, one seed, one queue: processes that can be killed and stopped, links that delay and lose, and
/// a clock that jumps from event to event. The same seed gives the same trace hash.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/random.hpp"

namespace troupe::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A process of the simulated cluster. Every start is a new object; a dead one stays dead.
struct Process {
  Process(std::string process_name, int on_host) : name(std::move(process_name)), host(on_host) {}
  virtual ~Process() = default;
  /// Runs an event of this process.
  virtual void run(const std::function<void()>& what) { what(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  std::string name;
  int host;  ///< the machine it runs on
  int id = 0;
  bool alive = true;
  bool stopped = false;            ///< SIGSTOP: its events wait
  Duration ahead{};                ///< of its clock, which has jumped
  Instant lost_after{};            ///< after a kill: what it sent since then never left it
  std::function<void()> on_death;  ///< what its supervisor does
};

class World {
 public:
  explicit World(std::uint64_t seed, bool verbose) : random(seed), verbose_(verbose) {}

  SeededRandom random;
  ManualClock clock;
  Instant now() const { return clock.now(); }
  Duration between(Duration low, Duration high) {
    return low + Duration(random.below(static_cast<std::uint64_t>((high - low).count()) + 1));
  }
  bool chance(double p) { return random.uniform() < p; }

  void add(Process& process);
  /// Runs `what` in `process` after `delay`; later if it is stopped then, never if it is dead.
  void after(Process& process, Duration delay, const char* label, std::function<void()> what);
  /// Again and again, until it dies.
  void every(Process& process, Duration interval, const char* label, std::function<void()> what);
  /// For the harness itself: no process.
  void outside(Duration delay, const char* label, std::function<void()> what);
  /// A message: in order on its link, delayed, lost if a partition loses it.
  void send(Process& from, Process& to, const char* label, std::function<void()> what);

  void kill(Process& process, const char* why);
  void stop(Process& process);
  void resume(Process& process);

  /// `from` cannot reach `to`. Messages are held until it heals, or lost.
  void cut(int from, int to, bool lose);
  void heal(int from, int to);
  bool reachable(int from, int to) const { return !cuts_.contains({from, to}); }
  bool loses(int from, int to) const {
    const auto cut = cuts_.find({from, to});
    return cut != cuts_.end() && cut->second;
  }

  /// Runs one event. False if there is none.
  bool step();
  std::uint64_t events() const { return events_; }
  std::uint64_t trace_hash() const { return trace_; }
  void trace(std::string_view who, std::string_view text);

  /// A broken invariant. The first one is kept; the run ends.
  void violation(const std::string& what);
  /// The last events before the violation (or until now), one a line: when, who, what.
  std::vector<std::string> story() const;
  std::function<void(Process&)> on_kill;  ///< called after a process was killed
  const std::string& violated() const { return violated_; }
  bool verbose() const { return verbose_; }
  /// Nothing happens any more, and nothing is told.
  void end();

 private:
  struct Event {
    Instant at{};
    std::uint64_t number = 0;
    Process* process = nullptr;
    Process* sender = nullptr;
    Instant sent{};
    const char* label = "";
    std::function<void()> what;
    bool operator>(const Event& other) const {
      return std::pair(at, number) > std::pair(other.at, other.number);
    }
  };
  /// Something that happened. `label` begins with ~ for what happens all the time: not worth telling.
  struct Told {
    Instant at{};
    std::string who;
    std::string what;
  };
  void tell(std::string_view who, std::string_view what);
  void push(Event event);
  void run(Event& event);

  bool verbose_;
  bool ended_ = false;
  std::vector<Event> queue_;                       ///< a heap, the earliest first
  std::map<Process*, std::deque<Event>> waiting_;  ///< for stopped processes
  std::map<std::pair<int, int>, Instant> link_busy_until_;
  std::map<std::pair<int, int>, bool> cuts_;  ///< true: loses
  std::map<std::pair<int, int>, std::vector<Event>> held_;
  int processes_ = 0;
  std::uint64_t numbers_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t trace_ = 0;
  std::string violated_;
  std::deque<Told> told_;  ///< the last of them
};

}  // namespace troupe::sim
