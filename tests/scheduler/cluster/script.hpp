/// A head's machine with a store that survives it, told events by hand.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>

#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::test {

using namespace troupe::cluster;

inline constexpr NodeId kGateway{100};
inline constexpr ProcessAddress kDriver{kGateway, ProcessId{7}};

struct Script {
  explicit Script(ClusterConfig with = {})
      : config(with), head(std::make_unique<ClusterMachine>(config, ids)) {}

  SeededRandom ids{5};
  ClusterConfig config;
  std::map<std::string, Record> store;
  std::unique_ptr<ClusterMachine> head;
  Instant now{};
  std::vector<ClusterAction> last;

  const std::vector<ClusterAction>& on(const ClusterEvent& event) {
    last = head->on(event, now);
    for (const ClusterAction& action : last) {
      if (const auto* p = std::get_if<Persist>(&action)) store.insert_or_assign(p->key, p->record);
      if (const auto* e = std::get_if<Erase>(&action)) store.erase(e->key);
    }
    head->check_invariants();
    return last;
  }
  void node(std::uint64_t id, int cpus, std::vector<LiveActor> actors = {}, std::vector<JobId> leases = {},
            std::vector<NodeId> peers = {}) {
    on(NodeJoined{{NodeId{id}, "n" + std::to_string(id), "", "", cpus * kCpu, false},
                  std::move(actors),
                  std::move(leases),
                  std::move(peers)});
  }
  void node_with_gpus(std::uint64_t id, int count) {
    NodeInfo info{NodeId{id}, "n" + std::to_string(id), "", "", 8 * kCpu, false};
    for (int i = 0; i < count; ++i) info.gpus.push_back("GPU-" + std::to_string(i));
    on(NodeJoined{info, {}, {}, {}});
  }
  void spawn_with_gpus(JobId job, std::uint64_t request, double gpus) {
    on(SpawnRequested{{kDriver, request},
                      {job, "T", "", "arguments", {0, true, {}, static_cast<std::int64_t>(gpus * kGpu)}}});
  }
  void gateway() { on(NodeJoined{{kGateway, "driver", "", "", 0, true}, {}, {}, {}}); }
  JobAnswered job(std::uint64_t request = 1, std::string name = "main") {
    on(JobRegistered{std::move(name), kDriver, request});
    return *get<JobAnswered>();
  }
  /// The job of a driver on a gateway, beside nodes 1, 2 and so on with so many CPUs.
  JobId job_on(const std::vector<int>& cpus) {
    for (std::size_t i = 0; i < cpus.size(); ++i) node(i + 1, cpus[i]);
    gateway();
    return job().job;
  }
  void spawn(JobId job, std::uint64_t request, std::string name = {}, int cpus = 1) {
    on(SpawnRequested{{kDriver, request}, {job, "T", std::move(name), "arguments", {cpus * kCpu, true, {}}}});
  }
  /// Spawns an actor, which comes up on the node that was chosen.
  ActorId up(JobId job, std::uint64_t request, std::string name = {}) {
    spawn(job, request, std::move(name));
    const StartActor start = *get<StartActor>();
    on(ActorStarted{start.node, start.actor, ProcessId{9}});
    return start.actor;
  }
  /// Time passes in which the nodes named show themselves.
  void pass(int seconds, const std::vector<NodeId>& alive) {
    for (int i = 0; i < seconds; ++i) {
      now += std::chrono::seconds(1);
      std::vector<ClusterAction> all;
      for (const NodeId id : alive) {
        on(Heartbeat{id});
        all.insert(all.end(), last.begin(), last.end());
      }
      on(Tick{});
      last.insert(last.begin(), all.begin(), all.end());
    }
  }
  template <class A>
  const A* get() const {
    for (const ClusterAction& action : last) {
      if (const auto* found = std::get_if<A>(&action)) return found;
    }
    return nullptr;
  }
  /// The same where there must be one.
  template <class A>
  const A& the() const {
    const A* const found = get<A>();
    REQUIRE(found != nullptr);
    return *found;
  }
  template <class A>
  std::vector<A> all() const {
    std::vector<A> found;
    for (const ClusterAction& action : last) {
      if (const auto* one = std::get_if<A>(&action)) found.push_back(*one);
    }
    return found;
  }
  template <class A>
  std::ptrdiff_t index() const {
    return std::find_if(last.begin(), last.end(),
                        [](const auto& a) { return std::holds_alternative<A>(a); }) -
           last.begin();
  }
  void restart() {
    head = std::make_unique<ClusterMachine>(config, ids);
    Restored restored;
    for (const auto& [key, record] : store) restored.records.push_back(record);
    on(restored);
  }
};

}  // namespace troupe::test
