/// Turns at scale: every CPU of a cluster is leased by two programs that have more to do, half each, and
/// others wait for room. Counts who is told, and times the ticks.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

#include "runtime/core/random.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::test {

class TurnsRun {
 public:
  static constexpr int kWorkersANode = 10;

  struct Ticks {
    std::size_t told = 0;  ///< workers that were to be given back
    double mean_ms = 0;    ///< of the processor; printed
    double most_ms = 0;
  };

  explicit TurnsRun(std::uint64_t nodes) : head_({}, ids_) {
    on(cluster::NodeJoined{{kGateway, "driver", "", "", 0, true}, {}, {}, {}});
    on(cluster::JobRegistered{"job", program(0), 1});
    job_ = find<cluster::JobAnswered>().job;
    for (std::uint64_t id = 1; id <= nodes; ++id)
      on(cluster::NodeJoined{
          {{id}, "node-" + std::to_string(id), "", "", kWorkersANode * cluster::kCpu, false}, {}, {}, {}});
    for (std::uint64_t i = 0; i < nodes * kWorkersANode; ++i) {
      spawn(program(i), std::string(cluster::kWorkerOfTasks), cluster::kCpu);
      const auto start = find<cluster::StartActor>();
      on(cluster::ActorStarted{start.node, start.actor, ProcessId{start.actor.value}});
    }
    for (std::uint64_t i = 0; i < 8; ++i)
      spawn(program(i), std::string(cluster::kWorkerOfTasks), cluster::kCpu);
  }

  void wants_room(int actors, std::int64_t cpu_e4) {
    for (int i = 0; i < actors; ++i) spawn(program(0), "Trainer", cpu_e4);
  }
  /// All CPUs of as many nodes.
  void wants_group() {
    on(cluster::GroupRequested{
        {program(0), ++requests_},
        job_,
        cluster::GroupVerb::kMake,
        {},
        {{}, "", PlacementStrategy::kStrictSpread, {8, {kWorkersANode * cluster::kCpu, 0}}}});
  }
  Ticks tick(int times) {
    Ticks ticks;
    for (int i = 0; i < times; ++i) {
      now_ += std::chrono::milliseconds(250);
      for (const auto& [id, node] : head_.nodes()) on(cluster::Heartbeat{id});
      const std::clock_t begin = std::clock();  // of this process: tests run beside others
      on(cluster::Tick{});
      const double took_ms = 1000.0 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      ticks.mean_ms += took_ms / times;
      ticks.most_ms = std::max(ticks.most_ms, took_ms);
      ticks.told +=
          static_cast<std::size_t>(std::count_if(last_.begin(), last_.end(), [](const auto& action) {
            return std::holds_alternative<cluster::ActorLeaves>(action);
          }));
    }
    return ticks;
  }
  const cluster::ClusterMachine& head() const { return head_; }

 private:
  static constexpr NodeId kGateway{1ULL << 63};

  static ProcessAddress program(std::uint64_t number) { return {kGateway, ProcessId{1 + number % 2}}; }
  void spawn(const ProcessAddress& by, std::string type, std::int64_t cpu_e4) {
    on(cluster::SpawnRequested{{by, ++requests_}, {job_, std::move(type), "", "", {cpu_e4, true, {}}}});
  }
  void on(const cluster::ClusterEvent& event) { last_ = head_.on(event, now_); }
  template <class A>
  A find() const {
    return std::get<A>(*std::find_if(last_.begin(), last_.end(),
                                     [](const auto& action) { return std::holds_alternative<A>(action); }));
  }

  SeededRandom ids_{1};
  cluster::ClusterMachine head_;
  Instant now_{};
  JobId job_{};
  std::uint64_t requests_ = 1;
  std::vector<cluster::ClusterAction> last_;
};

}  // namespace troupe::test
