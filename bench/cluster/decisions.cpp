#include "bench/cluster/decisions.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "scheduler/head/head_machine.hpp"
#include "scheduler/head/store_thread.hpp"
#include "scheduler/placement/group_plan.hpp"
#include "scheduler/store/sqlite_storage.hpp"

namespace troupe::bench {
namespace {

using namespace cluster;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kBundles = 8;
constexpr int kCpusANode = 64;
constexpr double kSeconds = 2;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

GroupSpec spec_of(PlacementStrategy strategy, const BundleDemand& bundle = {kCpu, 0}) {
  return {{}, "", strategy, std::vector(kBundles, bundle)};
}

/// In microseconds; `times` are sorted.
double at(const std::vector<double>& times, double part) {
  if (times.empty()) return 0;
  return times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))] * 1e6;
}

DecisionRow row_of(std::string name, std::uint64_t nodes, std::vector<double> times, double seconds) {
  std::sort(times.begin(), times.end());
  return {std::move(name), nodes, static_cast<double>(times.size() * kBundles) / seconds, at(times, 0.5),
          at(times, 0.99)};
}

scheduler::NodeIndex empty_cluster(std::uint64_t nodes) {
  scheduler::NodeIndex index;
  for (std::uint64_t id = 1; id <= nodes; ++id)
    index.set({NodeId{id}, "node-" + std::to_string(id), kCpusANode * kCpu, 0, 0, false, GpuUse(kBundles, 0),
               other_resources(256 * kGiB, {{"tpu", kBundles}}, {})});
  return index;
}

/// The head's machine, its store and the thread that writes it, as the head has them.
class DurableHead {
 public:
  explicit DurableHead(const std::string& folder)
      : storage_(open_sqlite_storage(folder).value()),
        machine_({}, ids_),
        store_(*storage_, [this](Result<void> how, Duration took) {
          const std::lock_guard lock(mutex_);
          writes_.push_back(to_seconds(took));
          written_.push_back(std::move(how));
          changed_.notify_all();
        }) {}

  void on(const ClusterEvent& event) {
    const auto begin = Clock::now();
    take(machine_.on(event, clock_.now()));
    turns_.push_back(seconds_since(begin));
  }
  /// How long writes took, in seconds, and what the loop did at a time.
  std::vector<double> writes() {
    const std::lock_guard lock(mutex_);
    return writes_;
  }
  const std::vector<double>& turns() const { return turns_; }
  /// What came since the last call. Waits for the disk if nothing did.
  std::vector<ClusterAction> said() {
    if (said_.empty()) take_written(true);
    return std::exchange(said_, {});
  }
  void take_written(bool waits) {
    std::unique_lock lock(mutex_);
    if (waits) changed_.wait_for(lock, std::chrono::seconds(30), [this] { return !written_.empty(); });
    while (!written_.empty()) {
      const Result<void> how = std::move(written_.front());
      written_.pop_front();
      lock.unlock();
      const auto begin = Clock::now();
      take(machine_.written(how, clock_.now()));
      turns_.push_back(seconds_since(begin));
      lock.lock();
    }
  }

 private:
  void take(HeadMachine::Output out) {
    for (const HeadMessage& message : out.send) said_.push_back(std::get<ClusterAction>(message));
    if (out.write) store_.write(std::move(out.write));
  }

  MonotonicClock clock_;
  SeededRandom ids_{1};
  std::unique_ptr<Storage> storage_;
  HeadMachine machine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Result<void>> written_;  ///< guarded by mutex_
  std::vector<double> writes_;        ///< guarded by mutex_
  std::vector<double> turns_;
  std::vector<ClusterAction> said_;
  StoreThread store_;  // last: its end waits for the write under way
};

}  // namespace

std::vector<DecisionRow> decide_by_planner(std::uint64_t nodes) {
  std::vector<DecisionRow> rows;
  const std::pair<const char*, BundleDemand> demands[] = {
      {"", {kCpu, 0}},
      {" memory, tpu", {kCpu, 0, other_resources(kGiB, {{"tpu", 1}}, {})}},
      {" GPU", {kCpu, kGpu}}};
  std::vector<std::pair<PlacementStrategy, std::size_t>> cases;
  for (std::size_t demand = 0; demand < std::size(demands); ++demand) {
    for (const PlacementStrategy strategy : {PlacementStrategy::kPack, PlacementStrategy::kStrictPack,
                                             PlacementStrategy::kSpread, PlacementStrategy::kStrictSpread})
      cases.emplace_back(strategy, demand);
  }
  for (const auto& [strategy, demand] : cases) {
    scheduler::NodeIndex index = empty_cluster(nodes);
    const BundleDemand& bundle = demands[demand].second;
    const GroupSpec spec = spec_of(strategy, bundle);
    const std::vector<PlacedBundle> none(kBundles);
    std::vector<double> times;
    double spent = 0;
    for (const auto began = Clock::now(); seconds_since(began) < kSeconds;) {
      const auto begin = Clock::now();
      const auto plan = scheduler::plan_group(spec, none, index);
      for (const PlacedBundle& placed : plan.placed) {
        NodeView node = index.nodes().at(placed.node);
        node.cpu_used_e4 += kCpu;
        add_amounts(node.other_used, bundle.other.amounts, 1);
        for (const std::uint32_t gpu : placed.gpus) node.gpus[gpu] += kGpu;
        index.set(std::move(node));
      }
      if (plan.is_placed) {
        times.push_back(seconds_since(begin));
        spent += times.back();
      } else {
        index = empty_cluster(nodes);  // it is full
      }
    }
    rows.push_back(row_of(std::string("planner, ") + scheduler::name_of(strategy) + demands[demand].first,
                          nodes, std::move(times), spent));
  }
  return rows;
}

DecisionRow decide_by_head(std::uint64_t nodes, std::size_t outstanding) {
  outstanding =
      std::min<std::size_t>(outstanding, nodes * kCpusANode / kBundles / 4);  // all of them have room
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("troupe-bench-" + std::to_string(::getpid()))).string();
  std::vector<double> times, writes, turns;
  double spent = 0;
  {
    DurableHead head(folder);
    const ProcessAddress driver{NodeId{1ULL << 63}, ProcessId{7}};
    head.on(NodeJoined{{driver.node, "driver", "10.0.0.1:1", "", 0, true}, {}, {}, {}});
    head.on(JobRegistered{"job", driver, 1});
    for (std::uint64_t id = 1; id <= nodes; ++id)
      head.on(NodeJoined{
          {NodeId{id}, "node-" + std::to_string(id), "10.0.0.1:40000", "", kCpusANode * kCpu, false},
          {},
          {},
          {}});
    JobId job{};
    while (!job) {
      for (const ClusterAction& action : head.said()) {
        if (const auto* answered = std::get_if<JobAnswered>(&action)) job = answered->job;
      }
    }
    const GroupSpec spec = spec_of(PlacementStrategy::kPack);
    std::uint64_t request = 1;
    std::map<std::uint64_t, Clock::time_point>
        asked;  // kAwait, which is answered once it is ready and durable
    std::deque<GroupId> ready;
    const std::size_t most_ready = nodes * kCpusANode / kBundles / 2;
    const auto begin = Clock::now();
    while (spent < 2 * kSeconds || !asked.empty()) {
      spent = seconds_since(begin);
      while (asked.size() < outstanding && spent < 2 * kSeconds) {
        asked.emplace(++request, Clock::now());
        head.on(GroupRequested{{driver, request}, job, GroupVerb::kMake, {}, spec});
        head.take_written(false);
        if (ready.size() > most_ready) {
          head.on(GroupRequested{{driver, ++request}, job, GroupVerb::kRemove, ready.front(), {}});
          ready.pop_front();
        }
      }
      for (const ClusterAction& action : head.said()) {
        const auto* answered = std::get_if<GroupAnswered>(&action);
        if (answered == nullptr) continue;
        const auto its = asked.find(answered->to.request);
        if (its == asked.end()) continue;
        times.push_back(seconds_since(its->second));
        asked.erase(its);
        ready.push_back(answered->status.record.group);
      }
      if (asked.empty() && spent >= 2 * kSeconds) break;
    }
    spent = seconds_since(begin);
    writes = head.writes();
    turns = head.turns();
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  DecisionRow row =
      row_of("head, durable, " + std::to_string(outstanding) + " at a time", nodes, std::move(times), spent);
  std::sort(writes.begin(), writes.end());
  std::sort(turns.begin(), turns.end());
  row.write_p50_us = at(writes, 0.5);
  row.write_p99_us = at(writes, 0.99);
  row.loop_p99_us = at(turns, 0.99);
  return row;
}

}  // namespace troupe::bench
