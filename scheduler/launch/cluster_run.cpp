#include "scheduler/launch/cluster_run.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <map>

#include "runtime/core/hex.hpp"
#include "runtime/core/random.hpp"
#include "runtime/wire/messages.hpp"
#include "scheduler/init/init.hpp"
#include "scheduler/launch/run_agent.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::launch {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(200);
constexpr Duration kLook = std::chrono::milliseconds(500);
constexpr Duration kSoon = std::chrono::seconds(2);
constexpr Duration kLastOutput = std::chrono::seconds(10);

/// A node of the cluster, by its agent. What the agent is told is told again after a link broke; its death
/// comes from its monitor.
class AgentNode final : public RunNode {
 public:
  AgentNode(RunDriver& driver, Session session, ActorHandle<RunAgent> agent)
      : state_(std::make_shared<State>(driver, session, std::move(agent))) {
    pull(state_, 0);
  }
  ~AgentNode() override { state_->is_gone = true; }

  void take_port(std::uint32_t attempt) override {
    ask(state_, [attempt](const auto& agent) { return agent.template call<&RunAgent::take_port>(attempt); });
  }
  void start(const RankPlan& plan) override {
    ask(state_, [plan](const auto& agent) { return agent.template call<&RunAgent::start>(plan); });
  }
  void signal(std::uint32_t attempt, int signal) override {
    ask(state_, [=](const auto& agent) { return agent.template call<&RunAgent::signal>(attempt, signal); });
  }
  void close(std::function<void()> done) override {
    state_->is_gone = true;
    const auto once = std::make_shared<std::function<void()>>(std::move(done));
    const auto finish = [state = state_, once] {
      state->driver.loop().post([once] {
        if (*once) std::exchange(*once, nullptr)();
      });
    };
    state_->driver.loop().after(kLastOutput, [once] {
      if (*once) std::exchange(*once, nullptr)();
    });
    // Its last lines have come when its end is told.
    state_->agent.call<&RunAgent::close>().then([state = state_, finish](const Result<bool>&) {
      state->session.monitor(state->agent, [finish](const std::string&) { finish(); });
      state->session.kill(state->agent, "the run has ended");
    });
  }

 private:
  struct State {
    RunDriver& driver;
    Session session;
    ActorHandle<RunAgent> agent;
    std::atomic<bool> is_gone = false;
    State(RunDriver& d, Session s, ActorHandle<RunAgent> a) : driver(d), session(s), agent(std::move(a)) {}
  };
  using Shared = std::shared_ptr<State>;

  template <class Call>
  static void ask(const Shared& state, Call call) {
    call(state->agent).then([state, call](const Result<void>& answered) {
      if (answered || answered.error().code != ErrorCode::kUnavailable || state->is_gone) return;
      state->driver.loop().post([state, call] {
        state->driver.loop().after(kRetry, [state, call] {
          if (!state->is_gone) ask(state, call);
        });
      });
    });
  }
  static void pull(const Shared& state, std::uint64_t first) {
    state->agent.call<&RunAgent::events>(first).then([state, first](Result<std::vector<RunEvent>> events) {
      if (state->is_gone) return;
      const bool again = events || events.error().code == ErrorCode::kUnavailable;
      state->driver.loop().post([state, first, again, events = std::move(events)] {
        if (state->is_gone || !again) return;
        if (!events) return state->driver.loop().after(kRetry, [state, first] { pull(state, first); });
        for (const RunEvent& event : *events) state->driver.on(event);
        if (!state->is_gone) pull(state, first + events->size());
      });
    });
  }

  Shared state_;
};

/// Looks for nodes, and puts an agent on each that the run may use. Of the loop's thread. What it asks for
/// may be answered when it is gone: an answer touches the loop alone, which does not run any more then.
class AgentStarter {
 public:
  AgentStarter(RunDriver& driver, Session session, const RunConfig& config, RunSpec spec,
               const ClusterChoice& cluster)
      : driver_(driver), session_(session), config_(config), spec_(std::move(spec)), cluster_(cluster) {
    look_for_nodes();
  }

 private:
  enum class Is { kStarting, kThere, kLeftOut };
  struct Agent {
    Is is = Is::kStarting;
    Instant since{};
  };

  void look_for_nodes() {
    Future<wire::NodesAnswer>(session_.process().nodes())
        .then([this, &driver = driver_](const Result<wire::NodesAnswer>& answer) {
          // None: the head is away, or our own node. The next look says more.
          driver.loop().post([this, nodes = answer ? answer->nodes : std::vector<cluster::NodeInfo>()] {
            use(nodes);
            driver_.loop().after(kLook, [this] { look_for_nodes(); });
          });
        });
  }

  void use(std::vector<cluster::NodeInfo> nodes) {
    std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    for (const auto& node : nodes) {
      if (node.gateway || agents_.count(node.id) != 0 || expected() >= config_.max_nodes) continue;
      const auto cpus = static_cast<std::uint32_t>(node.cpu_e4 / cluster::kCpu);
      const auto processes = cluster_.processes(cpus, static_cast<std::uint32_t>(node.gpus.size()));
      if (processes != 0) {
        start_agent(node, processes);
      } else {
        leave_out(node, std::to_string(cpus) + " CPUs and " + std::to_string(node.gpus.size()) +
                            " GPUs are too few for --nproc-per-node");
      }
    }
  }

  /// Agents that are there or will be soon. One that waits for CPUs of a busy node does not keep others from
  /// starting.
  std::size_t expected() const {
    const Instant now = MonotonicClock().now();
    return static_cast<std::size_t>(std::count_if(agents_.begin(), agents_.end(), [&](const auto& agent) {
      return agent.second.is == Is::kThere ||
             (agent.second.is == Is::kStarting && now - agent.second.since < kSoon);
    }));
  }
  std::size_t there() const {
    return static_cast<std::size_t>(std::count_if(
        agents_.begin(), agents_.end(), [](const auto& agent) { return agent.second.is == Is::kThere; }));
  }

  void leave_out(const cluster::NodeInfo& node, const std::string& why) {
    agents_[node.id].is = Is::kLeftOut;
    std::fprintf(stderr, "troupe run: node %s is left out: %s\n", node.name.c_str(), why.c_str());
  }

  void start_agent(const cluster::NodeInfo& node, std::uint32_t processes) {
    const std::uint32_t number = next_++;
    agents_[node.id] = {Is::kStarting, MonotonicClock().now()};
    const double cpus = static_cast<double>(node.cpu_e4) / cluster::kCpu;
    session_
        .spawn_async<RunAgent>(
            {.num_cpus = std::min(static_cast<double>(processes), cpus),
             .num_gpus = static_cast<double>(std::min<std::size_t>(processes, node.gpus.size())),
             .isolated = true,
             .node = node.id,
             .label = node.name},
            spec_, number)
        .then([this, &driver = driver_, node, number, processes](const Result<ActorHandle<RunAgent>>& agent) {
          driver.loop().post([this, node, number, processes, agent] {
            agent ? came(node, number, processes, *agent) : did_not_come(node, agent.error());
          });
        });
  }

  void did_not_come(const cluster::NodeInfo& node, const ErrorInfo& error) {
    const bool is_lost = error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kActorDied;
    if (!is_lost) return leave_out(node, error.message());
    agents_.erase(node.id);  // its node went, or ours: if it is there, it is tried again
  }

  void came(const cluster::NodeInfo& node, std::uint32_t number, std::uint32_t processes,
            const ActorHandle<RunAgent>& agent) {
    if (there() >= config_.max_nodes) {
      agents_.erase(node.id);
      return session_.kill(agent, "the run has nodes enough");
    }
    agents_[node.id].is = Is::kThere;
    driver_.add(number, std::make_unique<AgentNode>(driver_, session_, agent));
    session_.monitor(agent, [this, &driver = driver_, id = node.id, number](const std::string& reason) {
      driver.loop().post([this, id, number, reason] {
        agents_.erase(id);  // it may have been its agent alone
        driver_.remove(number);
        driver_.on(NodeWent{number, reason});
      });
    });
    driver_.on(NodeCame{number, node.name, processes});
  }

  RunDriver& driver_;
  const Session session_;
  const RunConfig config_;
  const RunSpec spec_;
  const ClusterChoice& cluster_;
  std::map<NodeId, Agent> agents_;
  std::uint32_t next_ = 0;
};

}  // namespace

int run_on_cluster(const RunConfig& config, RunSpec spec, const ClusterChoice& cluster) {
  RunDriver driver(config);  // before there are other threads: they leave signals to it
  char name[] = "troupe-run";
  char* argv[] = {name, nullptr};
  auto session =
      init(1, argv, {.address = cluster.address, .folder = cluster.folder, .token_file = cluster.token_file});
  std::array<std::byte, 32> key{};
  SystemRandom().fill(key);
  spec.job_key = to_hex(key);
  AgentStarter starter(driver, session, config, std::move(spec), cluster);
  return driver.run();
}

}  // namespace troupe::launch
