/// The driver's machine as a script: trainers A, B, C report, the driver orders.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "actors/train/driver/driver_machine.hpp"

namespace troupe::train {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr ActorId kA{1}, kB{2}, kC{3}, kLoader{9};

inline DriverConfig config_of(int trainers) {
  DriverConfig config;
  config.logical_ranks = 2;
  config.trainers = trainers;
  config.epochs = 2;
  config.steps_per_epoch = 4;
  config.ahead = 3;
  return config;
}

/// Every second step is saved.
inline DriverConfig saving(int trainers) {
  DriverConfig config = config_of(trainers);
  config.checkpoints = true;
  config.checkpoint_every = 2;
  return config;
}

inline SharedConfig shared(const DriverConfig& config) {
  return std::make_shared<const DriverConfig>(config);
}

struct Script {
  explicit Script(DriverConfig config) : driver(std::move(config)) {
    last = driver.start(now);
    note_spawns(last);
    on(LoaderReady{take_token(SpawnKind::kLoader), kLoader, {}, ""});
  }
  /// These trainers are there and run from step 0.
  Script(DriverConfig config, const std::vector<ActorId>& trainers) : Script(std::move(config)) {
    run_from_start(trainers);
  }
  DriverMachine driver;
  Instant now = seconds(1);
  std::vector<DriverAction> last;

  std::vector<SpawnActor> spawns;  ///< that were asked for and not answered

  void note_spawns(const std::vector<DriverAction>& actions) {
    for (const DriverAction& action : actions) {
      if (const auto* spawn = std::get_if<SpawnActor>(&action)) spawns.push_back(*spawn);
    }
  }
  /// Of the oldest spawn of this kind; 99 where none was asked for.
  std::uint64_t take_token(SpawnKind kind) {
    const auto at =
        std::find_if(spawns.begin(), spawns.end(), [&](const SpawnActor& s) { return s.kind == kind; });
    if (at == spawns.end()) return 99;
    const std::uint64_t token = at->token;
    spawns.erase(at);
    return token;
  }
  void on(const DriverEvent& event) {
    last = driver.on(event, now += std::chrono::microseconds(10));
    note_spawns(last);
  }
  void wait(Duration time) {
    for (const Instant end = now + time; now < end;) {
      now += milliseconds(100);
      const auto actions = driver.on(DriverTick{}, now);
      last.insert(last.end(), actions.begin(), actions.end());
      note_spawns(actions);
      for (const ActorId a : alive) driver.on(TrainerReport(TrainerHeartbeat{a, progress[a]}), now);
      driver.on(LoaderHeartbeat{kLoader, progress[kLoader]}, now);
    }
  }
  std::vector<ActorId> alive;
  std::map<ActorId, Progress> progress;  ///< that they tell with every heartbeat

  template <class A>
  std::vector<A> all() const {
    std::vector<A> found;
    for (const DriverAction& action : last) {
      if (const auto* a = std::get_if<A>(&action)) found.push_back(*a);
    }
    return found;
  }
  /// The action of this kind, of which there is one.
  template <class A>
  A only() const {
    const auto found = all<A>();
    REQUIRE(found.size() == 1);
    return found[0];
  }
  /// The order of this kind that `to` got last, if it did.
  template <class O>
  std::optional<O> order(ActorId to) const {
    std::optional<O> found;
    for (const SendOrder& send : all<SendOrder>()) {
      if (const auto* o = std::get_if<O>(&send.order); o != nullptr && send.trainer == to) found = *o;
    }
    return found;
  }
  Generation g() const { return driver.generation(); }
  void ready(ActorId a, bool has_nccl = false, bool sees_folder = true) {
    alive.push_back(a);
    on(TrainerReady{take_token(SpawnKind::kTrainer), a, NodeId{1}, "addr", has_nccl, sees_folder});
  }
  void quiesced(ActorId a, std::int64_t steps, std::vector<StepReport> uncommitted = {}) {
    on(TrainerQuiesced{a, g(), steps, lineage, std::move(uncommitted)});
  }
  /// A trainer that has no state comes.
  void join(ActorId a, bool sees_folder = true) {
    ready(a, false, sees_folder);
    quiesced(a, kNoState);
  }
  Generation lineage;  ///< that trainers report
  void formed(ActorId a) { on(GroupFormed{a, g()}); }
  void installed(ActorId a, std::int64_t steps) { on(StateInstalled{a, g(), steps}); }
  /// The member is in its group and has the state to go on from.
  void begin(ActorId a, std::int64_t steps) {
    formed(a);
    installed(a, steps);
  }
  static StepReport step(std::int64_t k) { return {k, {{0, 10, 1.0F}, {1, 11, 3.0F}}}; }
  void applied(ActorId a, std::int64_t k) { on(StepApplied{a, g(), step(k), parts_after(k + 1), true}); }
  void applied(std::initializer_list<ActorId> all_of, std::int64_t k) {
    for (const ActorId a : all_of) applied(a, k);
  }
  static std::vector<PartHash> parts_after(std::int64_t steps) {
    return {{"w", {1, 1}}, {"b", {static_cast<std::uint64_t>(steps), 0}}};
  }
  void copied(ActorId a, std::int64_t k) { on(CheckpointCopied{a, g(), k}); }
  /// Copied, and written: with all that comes of both.
  void written(ActorId a, std::int64_t k) {
    const Generation in = g();
    copied(a, k);
    const auto before = last;
    stored(a, in, k);
    last.insert(last.begin(), before.begin(), before.end());
  }
  void stored(ActorId a, Generation in, std::int64_t k) {
    on(CheckpointWritten{a, in, k, "ckpt-" + std::to_string(k), "h" + std::to_string(k), parts_after(k)});
  }
  /// A newcomer takes the state of `source` beside the steps, up to `steps`.
  void follow(ActorId source, ActorId newcomer, std::int64_t steps) {
    on(StateShared{source, g(), "where " + to_string(source) + " is"});
    REQUIRE(order<FollowState>(newcomer));
    on(StateFollowed{newcomer, g(), steps});
  }
  /// `members` run from step `k` on until they are called to a generation with whoever has caught up. The
  /// number of steps that they then have.
  std::int64_t run_until_joined(const std::vector<ActorId>& members, std::int64_t k,
                                const std::function<StepReport(std::int64_t)>& step_of = step) {
    for (const Generation before = g(); g() == before; ++k) {
      REQUIRE(k < 100);
      for (const ActorId a : members) on(StepApplied{a, before, step_of(k), {}});
    }
    return k;
  }
  void down(ActorId a) {
    std::erase(alive, a);
    on(TrainerDown{a, "signal 9"});
  }
  /// All are there and run from step 0.
  void run_from_start(const std::vector<ActorId>& trainers) {
    for (const ActorId a : trainers) join(a);
    for (const ActorId a : trainers) begin(a, 0);
    REQUIRE(driver.state() == DriverMachine::State::kRunning);
    lineage = g();
  }
};

}  // namespace troupe::train
