/// Decides what becomes of a run: when ranks start, why they are ended, whether they start again.
///
/// Pure: step(event, now) changes the state and returns what to do, with the reason in words (Say) beside
/// each decision.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/launch/run_events.hpp"

namespace troupe::launch {

struct RunConfig {
  std::uint32_t min_nodes = 1;
  std::uint32_t max_nodes = 1;
  std::uint32_t max_restarts = 0;                        ///< of the whole run, after failures of ranks
  Duration shutdown_timeout = std::chrono::seconds(30);  ///< between a signal and SIGKILL
  Duration join_timeout = std::chrono::seconds(600);     ///< for the fewest nodes to come
  Duration settle = std::chrono::seconds(2);             ///< once they are enough, for more of them
  bool exit_code_first = false;                          ///< end with the code of the rank that failed first
};

/// One attempt after another: wait for nodes, take a port, run, stop. All ranks of an attempt end before the
/// next one starts. Invariants:
/// - A failure of a rank costs a restart; a node that goes or comes costs none. A rank that fails because a
/// node went is
///   no failure of its own: what an attempt ended of is decided when its last rank is known to have ended, by
///   when the node's end is known, too.
/// - Output that is lost is told once, and no run that lost some ends with 0.
/// - Ten attempts in a row that lost a node within a minute end the run.
class RunMachine {
 public:
  explicit RunMachine(RunConfig config) : config_(config) {}

  std::vector<RunAction> step(const RunEvent& event, Instant now);
  /// When to say Tick, if nothing happens before.
  std::optional<Instant> wakes_at() const;

 private:
  enum class Phase { kWaiting, kTakingPort, kRunning, kStopping, kEnded };
  struct Node {
    std::uint32_t id = 0;
    std::string name;
    std::uint32_t processes = 1;
  };
  struct Rank {
    std::uint32_t node = 0;
    std::uint32_t local_rank = 0;
    bool has_ended = false;
    bool has_succeeded = false;
  };

  void on(const NodeCame& event);
  void on(const NodeWent& event);
  void on(const PortTaken& event);
  void on(const PortRefused& event);
  void on(const NotStarted& event);
  void on(const WorkerEnded& event);
  void on(const SignalCame& event);
  void on(const NoMoreNodes& event);
  void on(const Tick& event);
  void on(const OutputFailed& event);
  void on(const OutputTrimmed& event);

  void await_nodes();
  void begin();
  void stop(int signal);
  void signal_all(int signal);
  void finish_if_all_ended();
  void decide_after_stop();
  void fail(std::string text, int code);
  void end(int code);
  void say(std::string text) { actions_.push_back(Say{std::move(text)}); }
  bool is_placed(std::uint32_t node) const;
  std::string name_rank(std::size_t rank) const;

  const RunConfig config_;
  Phase phase_ = Phase::kWaiting;
  Instant now_{};
  std::vector<RunAction> actions_;  ///< of the step under way

  std::vector<Node> nodes_;   ///< that live, by their number: ranks do not depend on who came first
  std::vector<Node> placed_;  ///< of this attempt, by group rank
  std::vector<Rank> ranks_;   ///< of this attempt
  std::uint32_t attempts_ = 0;
  std::uint32_t restarts_ = 0;
  std::uint32_t short_losses_ = 0;
  Instant began_{};
  std::optional<Instant> notice_at_;  ///< when the user hears that nodes are waited for
  std::optional<Instant> join_by_;    ///< while too few nodes are there
  std::optional<Instant> settle_by_;  ///< when the nodes that are there are taken as they are
  std::optional<Instant> kill_at_;    ///< while ranks are being ended

  // Why this attempt ends.
  std::string failure_;  ///< of the first rank that failed
  int failure_code_ = 1;
  std::string loss_;       ///< of a node
  bool is_final_ = false;  ///< a restart would not help
  int interrupted_ = 0;    ///< the signal that the launcher got
  bool output_failed_ = false;
  bool output_trimmed_ = false;  ///< said
  int end_code_ = 0;
};

/// "exit code 3: ValueError: no" or "killed by signal 9 (SIGKILL)", as people read it.
std::string to_text(const WorkerEnd& end);

}  // namespace troupe::launch
