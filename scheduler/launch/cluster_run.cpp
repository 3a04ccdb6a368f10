#include "scheduler/launch/cluster_run.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <set>

#include "runtime/core/hex.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/core/random.hpp"
#include "scheduler/init/init.hpp"
#include "scheduler/launch/run_agent.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::launch {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(200);
constexpr Duration kLook = std::chrono::milliseconds(500);
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

/// Looks for nodes, and puts an agent on each that the run may use. What it asks for may be answered when it
/// is gone: an answer touches the loop alone, which does not run any more then.
class AgentStarter {
 public:
  AgentStarter(RunDriver& driver, Session session, const RunConfig& config, RunSpec spec,
               const ClusterChoice& cluster)
      : driver_(driver), session_(session), config_(config), spec_(std::move(spec)), cluster_(cluster) {
    thread_ = start_quiet_thread([this] { look_for_nodes(); });
  }
  ~AgentStarter() {
    is_ending_ = true;
    thread_.join();
  }

 private:
  /// Of the loop's thread.
  struct Used {
    std::uint32_t number = 0;
    bool is_refused = false;
  };

  void look_for_nodes() {
    while (!is_ending_) {
      try {
        const auto nodes = session_.nodes();
        driver_.loop().post([this, nodes] { use(nodes); });
      } catch (const Error& error) {  // the head is away, or our node: the next look says more
        log(LogLevel::kInfo, error.what());
      }
      for (Duration waited{}; waited < kLook && !is_ending_; waited += kLook / 10)
        std::this_thread::sleep_for(kLook / 10);
    }
  }

  void use(std::vector<cluster::NodeInfo> nodes) {
    std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    for (const auto& node : nodes) {
      if (node.gateway || used_.count(node.id) != 0 || in_use_ >= config_.max_nodes) continue;
      const auto cpus = static_cast<std::uint32_t>(node.cpu_e4 / cluster::kCpu);
      const auto processes = cluster_.processes(cpus, static_cast<std::uint32_t>(node.gpus.size()));
      if (processes == 0) {
        refuse(node, std::to_string(cpus) + " CPUs and " + std::to_string(node.gpus.size()) +
                         " GPUs are too few for --nproc-per-node");
        continue;
      }
      start_agent(node, processes);
    }
  }

  void refuse(const cluster::NodeInfo& node, const std::string& why) {
    used_[node.id].is_refused = true;
    std::fprintf(stderr, "troupe run: node %s is left out: %s\n", node.name.c_str(), why.c_str());
  }

  void start_agent(const cluster::NodeInfo& node, std::uint32_t processes) {
    const std::uint32_t number = next_++;
    used_[node.id] = {number, false};
    ++in_use_;
    const double gpus = static_cast<double>(std::min<std::size_t>(processes, node.gpus.size()));
    session_
        .spawn_async<RunAgent>({.num_cpus = std::min(static_cast<double>(processes),
                                                     static_cast<double>(node.cpu_e4) / cluster::kCpu),
                                .num_gpus = gpus,
                                .isolated = true,
                                .node = node.id,
                                .label = node.name},
                               spec_, number)
        .then([this, &driver = driver_, node, number, processes](Result<ActorHandle<RunAgent>> agent) {
          driver.loop().post([this, node, number, processes, agent = std::move(agent)] {
            if (agent) return came(node, number, processes, *agent);
            --in_use_;
            refuse(node, agent.error().message());
          });
        });
  }

  void came(const cluster::NodeInfo& node, std::uint32_t number, std::uint32_t processes,
            const ActorHandle<RunAgent>& agent) {
    driver_.add(number, std::make_unique<AgentNode>(driver_, session_, agent));
    session_.monitor(agent, [this, &driver = driver_, id = node.id, number](const std::string& reason) {
      driver.loop().post([this, id, number, reason] {
        --in_use_;
        used_.erase(id);  // it may have been its agent alone
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
  std::map<NodeId, Used> used_;
  std::uint32_t next_ = 0;
  std::uint32_t in_use_ = 0;
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
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
