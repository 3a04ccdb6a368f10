#include "scheduler/launch/run_machine.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "runtime/core/assert.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/ending.hpp"

namespace troupe::launch {
namespace {

constexpr Duration kNotice = std::chrono::seconds(3);
constexpr Duration kShortLife = std::chrono::seconds(60);
constexpr std::uint32_t kMostShortLosses = 10;
constexpr int kBySignal = 128;  // a shell's way to say it

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : "SIG" + std::string(name);
}

}  // namespace

std::string to_text(const WorkerEnd& end) {
  std::string text = end.signal != 0 ? ended_by_signal(end.signal) : ended_with_code(end.code);
  if (!end.error.empty()) text += ": " + end.error;
  if (!end.error_file.empty()) text += " (" + end.error_file + ")";
  return text;
}

std::vector<RunAction> RunMachine::step(const RunEvent& event, Instant now) {
  now_ = now;
  actions_.clear();
  if (const auto* failed = std::get_if<OutputFailed>(&event)) {
    on(*failed);  // the last output comes when the ranks have ended
  } else if (const auto* trimmed = std::get_if<OutputTrimmed>(&event)) {
    on(*trimmed);
  } else if (phase_ != Phase::kEnded) {
    if (phase_ == Phase::kWaiting && !join_by_ && !settle_by_) await_nodes();
    std::visit([this](const auto& e) { on(e); }, event);
  }
  return std::move(actions_);
}

std::optional<Instant> RunMachine::wakes_at() const {
  std::optional<Instant> first;
  for (const auto& at : {notice_at_, join_by_, settle_by_, kill_at_}) {
    if (at && (!first || *at < *first)) first = at;
  }
  return first;
}

bool RunMachine::is_placed(std::uint32_t node) const {
  return std::any_of(placed_.begin(), placed_.end(), [&](const Node& n) { return n.id == node; });
}

std::string RunMachine::name_rank(std::size_t rank) const {
  const Rank& of = ranks_[rank];
  const auto node =
      std::find_if(placed_.begin(), placed_.end(), [&](const Node& n) { return n.id == of.node; });
  std::string text = "rank " + std::to_string(rank);
  if (!node->name.empty())
    text += " (local rank " + std::to_string(of.local_rank) + " on " + node->name + ")";
  return text;
}

// Nodes.

void RunMachine::on(const NodeCame& event) {
  const auto after =
      std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.id > event.node; });
  nodes_.insert(after, {event.node, event.name, event.processes});
  if (phase_ == Phase::kWaiting) return await_nodes();
  if (phase_ == Phase::kRunning && placed_.size() < config_.max_nodes && !settle_by_)
    settle_by_ = now_ + config_.settle;
}

void RunMachine::on(const NodeWent& event) {
  const auto at =
      std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.id == event.node; });
  if (at == nodes_.end()) return;
  const std::string name = at->name.empty() ? "this machine" : at->name;
  nodes_.erase(at);
  if (phase_ == Phase::kWaiting) return await_nodes();
  if (!is_placed(event.node)) return;
  bool has_lost_ranks = phase_ == Phase::kTakingPort;
  for (Rank& rank : ranks_) {
    if (rank.node != event.node || rank.has_ended) continue;
    rank.has_ended = true;
    has_lost_ranks = true;
  }
  if (!has_lost_ranks) return;  // all of its ranks had ended well
  if (loss_.empty()) loss_ = "node " + name + " is gone: " + event.reason;
  if (phase_ == Phase::kTakingPort) return decide_after_stop();
  if (phase_ == Phase::kRunning) return stop(SIGTERM);
  finish_if_all_ended();
}

void RunMachine::on(const NoMoreNodes& event) {
  if (phase_ != Phase::kWaiting || nodes_.size() >= config_.min_nodes) return;
  fail(event.reason, 1);
}

/// Begins as soon as all nodes are there, or enough of them and no other one for a while.
void RunMachine::await_nodes() {
  phase_ = Phase::kWaiting;
  if (nodes_.size() < config_.min_nodes) {
    settle_by_.reset();
    if (!join_by_) {
      join_by_ = now_ + config_.join_timeout;
      notice_at_ = now_ + kNotice;
    }
    return;
  }
  join_by_.reset();
  notice_at_.reset();
  if (nodes_.size() >= config_.max_nodes) return begin();
  if (!settle_by_) settle_by_ = now_ + config_.settle;
}

// An attempt.

void RunMachine::begin() {
  TROUPE_ASSERT(nodes_.size() >= config_.min_nodes, "an attempt has nodes enough");
  notice_at_.reset();
  join_by_.reset();
  settle_by_.reset();
  failure_.clear();
  loss_.clear();
  placed_.assign(nodes_.begin(),
                 nodes_.begin() +
                     std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(nodes_.size()), config_.max_nodes));
  ranks_.clear();
  for (const Node& node : placed_) {
    for (std::uint32_t i = 0; i < node.processes; ++i) ranks_.push_back({node.id, i});
  }
  phase_ = Phase::kTakingPort;
  began_ = now_;
  actions_.push_back(TakePort{attempts_, placed_.front().id});
}

void RunMachine::on(const PortTaken& event) {
  if (phase_ != Phase::kTakingPort || event.attempt != attempts_) return;
  phase_ = Phase::kRunning;
  RankPlan plan;
  plan.attempt = attempts_;
  plan.restarts = restarts_;
  plan.max_restarts = config_.max_restarts;
  plan.group_world = static_cast<std::uint32_t>(placed_.size());
  plan.world = static_cast<std::uint32_t>(ranks_.size());
  plan.master_addr = event.address;
  plan.master_port = event.port;
  for (const Node& node : placed_) {
    plan.processes = node.processes;
    actions_.push_back(StartWorkers{node.id, plan});
    plan.first_rank += node.processes;
    ++plan.group_rank;
  }
  if (nodes_.size() > placed_.size() && placed_.size() < config_.max_nodes)
    settle_by_ = now_ + config_.settle;
}

void RunMachine::on(const PortRefused& event) {
  if (phase_ != Phase::kTakingPort || event.attempt != attempts_) return;
  fail(event.error.message(), 1);
}

void RunMachine::on(const NotStarted& event) {
  if (event.attempt != attempts_ || (phase_ != Phase::kRunning && phase_ != Phase::kStopping)) return;
  for (Rank& rank : ranks_) rank.has_ended = rank.has_ended || rank.node == event.node;
  if (failure_.empty()) {
    failure_ = event.error.message();
    failure_code_ = 1;
  }
  is_final_ = true;
  if (phase_ == Phase::kRunning) return stop(SIGTERM);
  finish_if_all_ended();
}

void RunMachine::on(const WorkerEnded& event) {
  if (event.attempt != attempts_ || (phase_ != Phase::kRunning && phase_ != Phase::kStopping)) return;
  const auto at = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return rank.node == event.node && rank.local_rank == event.local_rank;
  });
  if (at == ranks_.end() || at->has_ended) return;
  at->has_ended = true;
  at->has_succeeded = event.end.code == 0 && event.end.signal == 0;
  if (phase_ == Phase::kStopping || at->has_succeeded) return finish_if_all_ended();
  failure_ = name_rank(static_cast<std::size_t>(at - ranks_.begin())) + ", process " +
             std::to_string(event.end.pid) + ": " + to_text(event.end);
  failure_code_ = event.end.signal != 0 ? kBySignal + event.end.signal : event.end.code;
  say(failure_);
  stop(SIGTERM);
}

/// Ends the ranks that run. What follows is decided when they have all ended.
void RunMachine::stop(int signal) {
  phase_ = Phase::kStopping;
  settle_by_.reset();
  kill_at_ = now_ + config_.shutdown_timeout;
  signal_all(signal);
  finish_if_all_ended();
}

void RunMachine::signal_all(int signal) {
  for (const Node& node : placed_) {
    const bool runs = std::any_of(ranks_.begin(), ranks_.end(),
                                  [&](const Rank& rank) { return rank.node == node.id && !rank.has_ended; });
    if (runs) actions_.push_back(SignalWorkers{attempts_, node.id, signal});
  }
}

void RunMachine::finish_if_all_ended() {
  if (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.has_ended; })) return;
  if (phase_ == Phase::kRunning) return end(0);
  if (phase_ == Phase::kStopping) decide_after_stop();
}

void RunMachine::decide_after_stop() {
  kill_at_.reset();
  ++attempts_;
  if (interrupted_ != 0) return end(interrupted_ == SIGPIPE ? kBySignal + SIGPIPE : 1);
  if (is_final_) return fail(failure_, failure_code_);
  if (!loss_.empty()) {
    short_losses_ = now_ - began_ < kShortLife ? short_losses_ + 1 : 1;
    if (short_losses_ >= kMostShortLosses) {
      return fail(loss_ + "; it was the " + std::to_string(short_losses_) +
                      "th start in a row that lost a node within a minute",
                  1);
    }
    say(loss_ + "; starting again on " +
        count_of(std::min<std::size_t>(nodes_.size(), config_.max_nodes), "node") +
        (nodes_.size() < config_.min_nodes ? " as soon as there are " + std::to_string(config_.min_nodes)
                                           : "") +
        " (no restart counted)");
    return nodes_.size() < config_.min_nodes ? await_nodes() : begin();
  }
  if (failure_.empty()) {  // a node came
    say("starting again on " + count_of(std::min<std::size_t>(nodes_.size(), config_.max_nodes), "node") +
        " (no restart counted)");
    return begin();
  }
  if (restarts_ == config_.max_restarts) {
    if (restarts_ != 0)
      say(restarts_ == 1 ? "its one restart was used"
                         : "all " + count_of(restarts_, "restart") + " were used");
    return end(config_.exit_code_first ? failure_code_ : 1);
  }
  ++restarts_;
  say("starting again (restart " + std::to_string(restarts_) + " of " + std::to_string(config_.max_restarts) +
      ")");
  nodes_.size() < config_.min_nodes ? await_nodes() : begin();
}

// The user, and time.

void RunMachine::on(const SignalCame& event) {
  const bool is_unread = event.signal == SIGPIPE;
  if (phase_ == Phase::kWaiting || phase_ == Phase::kTakingPort) {
    say("ended by " + signal_name(event.signal) + " before the ranks were started");
    return end(is_unread ? kBySignal + SIGPIPE : 1);
  }
  if (interrupted_ != 0) {
    if (is_unread) return;
    say(signal_name(event.signal) + " again: killing the ranks");
    kill_at_.reset();
    return signal_all(SIGKILL);
  }
  interrupted_ = event.signal;
  say((is_unread ? "nobody reads the output any more" : signal_name(event.signal)) + ": ending the ranks");
  const int signal = is_unread ? SIGTERM : event.signal;
  if (phase_ == Phase::kRunning) return stop(signal);
  signal_all(signal);
}

void RunMachine::on(const OutputFailed& event) {
  if (std::exchange(output_failed_, true)) return;
  say(event.error.message());
  if (phase_ == Phase::kEnded) end(end_code_);
}

/// Once a run: other ranks and attempts print as much.
void RunMachine::on(const OutputTrimmed& event) {
  if (std::exchange(output_trimmed_, true)) return;
  const auto node =
      std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.id == event.node; });
  say(event.file + (node == nodes_.end() || node->name.empty() ? "" : " on " + node->name) +
      " keeps the newest " + std::to_string(event.kept_bytes >> 20U) +
      " MiB, and older output is gone (--log-limit keeps more); so do the others of this run");
}

void RunMachine::on(const Tick&) {
  if (notice_at_ && now_ >= *notice_at_) {
    notice_at_.reset();
    say("waits for nodes: " + std::to_string(nodes_.size()) + " of " + std::to_string(config_.min_nodes) +
        " have come");
  }
  if (join_by_ && now_ >= *join_by_) {
    return fail("only " + count_of(nodes_.size(), "node") + " came within " +
                    std::to_string(static_cast<long>(to_seconds(config_.join_timeout))) + " s, and " +
                    std::to_string(config_.min_nodes) + " are needed (start nodes, or lower --nnodes)",
                1);
  }
  if (kill_at_ && now_ >= *kill_at_) {
    kill_at_.reset();
    say("ranks did not end within " +
        std::to_string(static_cast<long>(to_seconds(config_.shutdown_timeout))) +
        " s (--shutdown-timeout): killing them");
    return signal_all(SIGKILL);
  }
  if (!settle_by_ || now_ < *settle_by_) return;
  settle_by_.reset();
  if (phase_ == Phase::kWaiting) return begin();
  if (phase_ == Phase::kRunning && nodes_.size() > placed_.size()) {
    say("a node came: ending the ranks, to start them on more nodes");
    stop(SIGTERM);
  }
}

void RunMachine::fail(std::string text, int code) {
  say(std::move(text));
  end(config_.exit_code_first ? code : 1);
}

void RunMachine::end(int code) {
  phase_ = Phase::kEnded;
  notice_at_.reset();
  join_by_.reset();
  settle_by_.reset();
  kill_at_.reset();
  end_code_ = code;
  actions_.push_back(EndRun{code == 0 && output_failed_ ? 1 : code});
}

}  // namespace troupe::launch
