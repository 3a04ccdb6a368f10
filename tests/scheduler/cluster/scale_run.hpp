/// A cluster's life at scale, through the head's machine: nodes join, actors are placed, a tenth of the nodes
/// dies at once, and what they held is started again. Counts what the head says, writes and decides.
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "runtime/wire/messages.hpp"
#include "scheduler/head/head_machine.hpp"

namespace troupe::test {

struct ScaleCounts {
  std::uint64_t events = 0;
  std::uint64_t messages = 0;  ///< to nodes
  std::uint64_t answers = 0;   ///< of those, to heartbeats: one each
  std::uint64_t bytes = 0;     ///< of those, as frames
  std::uint64_t batches = 0;   ///< syncs
  std::uint64_t changes = 0;   ///< records put or erased
  std::uint64_t placed = 0;    ///< StartActor
  double seconds = 0;          ///< of the machine alone; for the benchmark
};

class ScaleRun {
 public:
  static constexpr int kActorsANode = 10;
  static constexpr int kPeersANode = 4;
  static constexpr int kPhases = 4;
  static constexpr std::array<const char*, kPhases> kNames{"nodes join", "actors are placed", "a tenth dies",
                                                           "they start again"};

  explicit ScaleRun(std::uint64_t nodes) : nodes_(nodes), head_({}, ids_) {}

  std::array<ScaleCounts, kPhases> run() {
    std::array<ScaleCounts, kPhases> phases;
    counts_ = &phases[0];
    on(cluster::NodeJoined{{kDriver.node, "driver", "10.0.0.1:1", key(), 0, true}, {}, {}, {}});
    on(cluster::JobRegistered{"job", kDriver, 1});
    for (std::uint64_t id = 1; id <= nodes_; ++id) {
      const cluster::NodeInfo info{node(id), "node-" + std::to_string(id),     "10.0.0.1:40000",
                                   key(),    2 * kActorsANode * cluster::kCpu, false};
      on(cluster::NodeJoined{info, {}, {}, {}});
      on(cluster::LeaseRequested{node(id), job_});
      on(cluster::PeerWanted{kDriver.node, node(id)});
      for (int k = 0; k < kPeersANode && id > 1; ++k)
        on(cluster::PeerWanted{node(id), node(1 + (id * 7919 + static_cast<std::uint64_t>(k)) % (id - 1))});
    }
    sync();
    counts_ = &phases[1];
    const std::uint64_t actors = nodes_ * kActorsANode;
    for (std::uint64_t i = 0; i < actors; ++i) spawn();
    sync();
    start_all();
    counts_ = &phases[2];
    const std::uint64_t dead = nodes_ / 10;
    for (int tick = 0; tick < 4 * 8; ++tick) {
      now_ += std::chrono::milliseconds(250);
      if (tick % 4 == 0) {
        on(cluster::Heartbeat{kDriver.node});
        for (std::uint64_t id = dead + 1; id <= nodes_; ++id) on(cluster::Heartbeat{node(id)});
      }
      on(cluster::Tick{});
    }
    sync();
    counts_ = &phases[3];
    for (std::uint64_t i = 0; i < dead * kActorsANode; ++i) spawn();
    sync();
    start_all();
    return phases;
  }
  const HeadMachine& head() const { return head_; }

 private:
  static constexpr ProcessAddress kDriver{NodeId{1ULL << 63}, ProcessId{7}};
  static constexpr int kEventsASync = 100;  ///< that arrive while the disk writes

  static NodeId node(std::uint64_t id) { return {id}; }
  static std::string key() { return std::string(40, 'k'); }

  void spawn() {
    on(cluster::SpawnRequested{{kDriver, ++requests_},
                               {job_, "Trainer", "", std::string(200, 'x'), {cluster::kCpu, true, {}}}});
  }
  void start_all() {
    for (const auto& start : std::exchange(starts_, {}))
      on(cluster::ActorStarted{start.node, start.actor, ProcessId{start.actor.value}});
    sync();
  }
  void on(const cluster::ClusterEvent& event) {
    const auto begin = std::chrono::steady_clock::now();
    auto out = head_.on(event, now_);
    counts_->seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++counts_->events;
    take(std::move(out));
    if (++since_sync_ >= kEventsASync) sync_once();
  }
  void take(HeadMachine::Output out) {
    for (const HeadMessage& message : out.send) {
      const auto& action = std::get<cluster::ClusterAction>(message);
      ++counts_->messages;
      if (std::holds_alternative<cluster::HeartbeatAnswered>(action)) ++counts_->answers;
      counts_->bytes += wire::control_frame(wire::FromHead{action}).size();
      if (const auto* start = std::get_if<cluster::StartActor>(&action)) {
        ++counts_->placed;
        starts_.push_back({start->node, start->actor, {}, {}});
      }
      if (const auto* answered = std::get_if<cluster::JobAnswered>(&action)) job_ = answered->job;
    }
    if (out.write) write_ = std::move(out.write);
  }
  void sync_once() {
    since_sync_ = 0;
    if (!write_) return;
    ++counts_->batches;
    counts_->changes += write_->changes().size();
    write_.reset();
    take(head_.written({}, now_));
  }
  void sync() {
    while (write_) sync_once();
  }

  const std::uint64_t nodes_;
  SeededRandom ids_{1};
  HeadMachine head_;
  Instant now_{};
  ScaleCounts* counts_ = nullptr;
  std::shared_ptr<const StoreBatch> write_;
  int since_sync_ = 0;
  JobId job_{};
  std::uint64_t requests_ = 1;
  std::vector<cluster::StartActor> starts_;
};

}  // namespace troupe::test
