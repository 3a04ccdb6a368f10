// Which request goes where, and that each ends once: scripts of what a deployment does, and a few thousand
// seeds of load, deaths, hangs and scaling.
#include "actors/serve/deployment_machine.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <tuple>
#include <utility>
#include <variant>

#include "tests/actors/serve/serve_world.hpp"

using namespace troupe;
using namespace troupe::serve;
using namespace std::chrono_literals;

namespace {

/// A world where nothing happens by itself.
WorldOptions still(Replicas replicas = 1) {
  WorldOptions options;
  options.config.replicas = replicas;
  options.config.max_batch = 8;
  options.config.max_queue = 32;
  options.requests_a_second = 0;
  return options;
}

}  // namespace

TEST_CASE("an idle replica gets what waits at once; batches grow while it computes") {
  auto options = still();
  options.batch_time = 10ms;
  ServeWorld world(options);
  world.submit(1, false, 10s);
  CHECK(world.batches == 1);  // alone: nobody waits for a batch to fill
  for (int i = 0; i < 7; ++i) world.submit(1, false, 10s);
  CHECK(world.batches == 1);
  world.submit(1, false, 10s);  // a full batch: it goes behind the one that is computed
  CHECK(world.batches == 2);
  world.submit(3, false, 10s);
  CHECK(world.batches == 2);  // and no third
  world.submit(20, false, 10s);
  world.run_for(1s);
  CHECK(world.answered == 11);
  CHECK(world.batches == 4);  // one above max_batch rows is a batch of its own
  CHECK(all(world.broken) == "");
}

TEST_CASE("an idle replica holds a batch for batch_wait, and no longer than the deadlines allow") {
  auto options = still();
  options.config.batch_wait = 100ms;
  ServeWorld world(options);
  world.submit(1, false, 10s);
  world.run_for(99ms);
  CHECK(world.batches == 0);
  world.run_for(2ms);
  CHECK(world.batches == 1);
  world.run_for(1s);
  world.submit(1, false, 10ms);
  world.run_for(9ms);
  CHECK(world.batches == 2);
  world.run_for(1s);
  CHECK(world.answered == 2);
}

TEST_CASE("a full queue refuses, a deadline ends a wait, and who leaves makes room") {
  auto options = still();
  options.batch_time = 1s;
  ServeWorld world(options);
  for (int i = 0; i < 9 + 32; ++i) world.submit(1, false, i == 20 ? 500ms : 60s);
  CHECK(world.failed.empty());
  world.submit(1, false, 60s);
  CHECK(world.failed[Failure::kQueueFull] == 1);
  CHECK(world.machine.view().queued_rows == 32);
  (void)world.machine.on(Left{30}, world.now);
  CHECK(world.machine.view().queued_rows == 31);
  world.run_for(600ms);
  CHECK(world.failed[Failure::kDeadline] == 1);
  CHECK(world.machine.view().queued_rows == 30);
  world.run_for(20s);
  CHECK(world.answered == 39);
  CHECK(all(world.broken) == "");
}

TEST_CASE(
    "a request whose deadline has come is not sent, and one that came too late to its replica says so") {
  ServeWorld world(still());
  world.submit(1, false, 0s);
  CHECK(world.failed[Failure::kDeadline] == 1);
  CHECK(world.batches == 0);

  DeploymentMachine machine({.replicas = 1});
  (void)machine.start(0s);
  (void)machine.on(ReplicaUp{1}, 1s);
  (void)machine.on(ReplicaReady{1}, 1s);
  (void)machine.on(Arrived{7, 1, 2s}, 1s);
  const auto actions = machine.on(BatchDone{1, 1, {{Verdict::What::kExpired, ""}}, {}}, 1s);
  CHECK(std::get<Fail>(actions.at(0)).why ==
        "its deadline came before the replica that it was sent to began with it");
}

// They were in the bodies of responses.
TEST_CASE("what a replica died of, with ids of actors and nodes, is kept apart from what a client is told") {
  DeploymentMachine machine({.replicas = 1, .restart = {}});
  const std::string inside = "actor 2a on node 3 is gone";
  Instant now = 0s;
  std::vector<Action> actions = machine.start(now);
  for (int death = 0; death < 2; ++death) {
    ReplicaId replica = 0;
    for (const Action& action : actions) {
      if (const auto* start = std::get_if<StartReplica>(&action)) replica = start->replica;
    }
    REQUIRE(replica != 0);
    (void)machine.on(ReplicaUp{replica}, now);
    (void)machine.on(ReplicaReady{replica}, now);
    if (death == 0) (void)machine.on(Arrived{7, 1, 600s}, now);
    actions = machine.on(ReplicaDied{replica, inside}, now);
    if (death == 1) break;
    now += 60s;
    for (Action& action : machine.on(Tick{}, now)) actions.push_back(std::move(action));
  }
  const auto failed = std::find_if(actions.begin(), actions.end(),
                                   [](const Action& action) { return std::holds_alternative<Fail>(action); });
  REQUIRE(failed != actions.end());
  CHECK(std::get<Fail>(*failed).why == "two replicas died while they computed it");
  CHECK(std::get<Fail>(*failed).inside == inside);
}

TEST_CASE("a replica's death: what it had begun is tried once more, alone; the rest was never sent") {
  auto options = still(2);
  options.batch_time = 100ms;
  ServeWorld world(options);
  for (int i = 0; i < 32; ++i) world.submit(1, i == 3, 60s);  // the fourth is what replicas die of
  world.run_for(20s);
  CHECK(world.deaths == 2);
  CHECK(world.failed[Failure::kReplicaDied] == 1);
  CHECK(world.innocent_deaths == 0);
  CHECK(world.answered == 31);
  CHECK(all(world.broken) == "");
}

TEST_CASE("replicas that die of every request use up the budget of retries") {
  auto options = still();
  options.config.max_batch = 1;
  ServeWorld world(options);
  for (int i = 0; i < 20; ++i) world.submit(1, true, 600s);
  world.run_for(100s);
  CHECK(world.failed == std::map<Failure, int>{{Failure::kReplicaDied, 20}});
  CHECK(world.deaths == 24);  // four requests were tried again
  CHECK(all(world.broken) == "");
}

// Thirty requests of one client that replicas died of: after five deaths in a row everybody else got "no
// replica comes up", at once, and replicas came up all the time.
TEST_CASE("requests that replicas die of take time from the others, and no answer") {
  for (const Replicas replicas : {Replicas(1), Replicas(0, 2), Replicas(3)}) {
    auto options = still(replicas);
    options.config.max_batch = 64;
    options.config.max_queue = 1024;
    ServeWorld world(options);
    for (int i = 0; i < 30; ++i) world.submit(1, true, 60s);
    world.run_for(1s);
    for (int i = 0; i < 20; ++i) world.submit(1, false, 60s);
    world.run_for(60s);
    CHECK(world.answered == 20);
    CHECK(world.failed == std::map<Failure, int>{{Failure::kReplicaDied, 30}});
    CHECK(world.innocent_deaths == 0);
    CHECK(all(world.broken) == "");
  }
}

TEST_CASE("a replica that is ready and dies without any request is followed ever later, too") {
  // Was: one after the other at once, for ever.
  DeploymentMachine machine({.replicas = 1, .restart = {}});
  auto actions = machine.start(1h);
  Instant now = 1h;
  std::vector<Duration> pauses;
  ReplicaId replica = 0;
  const auto next_dies = [&](bool answers) {
    (void)machine.on(ReplicaUp{++replica}, now);
    (void)machine.on(ReplicaReady{replica}, now);
    if (answers) (void)machine.on(ReplicaAlive{replica}, now);
    const Instant died = now;
    actions = machine.on(ReplicaDied{replica, "killed by signal 6"}, now);
    const auto starts = [&] {
      return std::any_of(actions.begin(), actions.end(),
                         [](const Action& one) { return std::holds_alternative<StartReplica>(one); });
    };
    if (!starts()) actions = machine.on(Tick{}, now = machine.wake_at());
    CHECK(starts());
    pauses.push_back(now - died);
  };
  for (int death = 0; death < 4; ++death) next_dies(false);
  next_dies(true);
  next_dies(false);
  CHECK(pauses == std::vector<Duration>{0s, 100ms, 200ms, 400ms, 0s, 0s});
}

TEST_CASE("a replica that dies before it is ready is followed ever later, one that had work at once") {
  DeploymentMachine machine({.replicas = 1, .restart = {}});
  (void)machine.start(1h);
  const auto starts = [](const std::vector<Action>& actions) {
    return std::count_if(actions.begin(), actions.end(),
                         [](const Action& one) { return std::holds_alternative<StartReplica>(one); });
  };
  ReplicaId replica = 1;
  for (int death = 0; death < 20; ++death, ++replica) {
    (void)machine.on(ReplicaUp{replica}, 1h);
    (void)machine.on(ReplicaReady{replica}, 1h);
    (void)machine.on(ReplicaAlive{replica}, 1h);
    CHECK(starts(machine.on(ReplicaDied{replica, "killed by signal 6"}, 1h)) == 1);
  }
  Instant now = 1h;
  std::vector<Duration> pauses;
  for (int death = 0; death < 5; ++death, ++replica) {
    const Instant died = now;
    auto actions = machine.on(ReplicaFailed{replica, {ErrorCode::kActorDied, "it died", "", ""}}, now);
    if (starts(actions) == 0) actions = machine.on(Tick{}, now = machine.wake_at());
    CHECK(starts(actions) == 1);
    pauses.push_back(now - died);
  }
  CHECK(pauses == std::vector<Duration>{0s, 100ms, 200ms, 400ms, 800ms});
  // None came up, five times: that is out of order.
  const auto actions = machine.on(Arrived{1000, 1, now + 600s}, now);
  REQUIRE(std::holds_alternative<Fail>(actions.at(0)));
  CHECK(std::get<Fail>(actions.at(0)).why == "no replica comes up");
}

TEST_CASE("bursts of requests that replicas die of: each other request is answered", "[simulation]") {
  int deaths = 0, answered = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SeededRandom random(seed);
    auto options = still({static_cast<int>(seed % 3), 3});
    options.seed = seed;
    options.config.max_batch = 64;
    options.config.max_queue = 100'000;
    options.config.drain_timeout = 120s;
    options.config.downscale_delay = seed % 2 == 0 ? 1s : 300s;
    options.requests_a_second = 50;
    options.timeout = 240s;
    options.start_fails = seed % 5 == 0 ? 0.1 : 0;
    ServeWorld world(options);
    for (int burst = 0; burst < 3; ++burst) {
      const std::uint64_t size = 5 + random.below(16);
      world.at(1s + 3s * burst, [&world, size] {
        for (std::uint64_t i = 0; i < size; ++i) world.submit(1, true, 240s);
      });
    }
    world.run();
    INFO("seed " << seed << "\n" << all(world.broken));
    REQUIRE(world.broken.empty());
    CHECK(world.failed.size() == 1);
    CHECK(world.innocent_deaths == 0);
    CHECK(world.answered + world.failed[Failure::kReplicaDied] == world.submitted);
    deaths += world.deaths;
    answered += world.answered;
  }
  CHECK(deaths > 5000);
  CHECK(answered > 50'000);
}

TEST_CASE("weights that do not fit are told at once: another start would end the same way") {
  DeploymentMachine machine({.replicas = 2});
  CHECK(machine.start(1s).size() == 2);
  (void)machine.on(ReplicaUp{1}, 2s);
  const auto actions = machine.on(ReplicaFailed{1, {ErrorCode::kBadConfig, "they do not fit", "", ""}}, 2s);
  CHECK(std::holds_alternative<GiveUp>(actions.at(0)));
  for (const auto& action : actions) CHECK_FALSE(std::holds_alternative<StartReplica>(action));
}

// Was: told by their monitors alone, five deaths in the first batch, and each after them, let run() wait.
TEST_CASE("that no replica comes up is told after five deaths, whoever tells of these, or start_timeout") {
  const auto given_up = [](int replicas, int are_ready, Duration each, const char* what) {
    DeploymentMachine machine({.replicas = replicas, .start_timeout = 20s, .restart = {}});
    Instant now = 1h;
    auto actions = machine.start(now);
    std::string why;
    int deaths = 0;
    for (int i = 0; why.empty() && i < 100; ++i) {
      std::vector<ReplicaId> started;
      for (const Action& action : std::exchange(actions, {})) {
        if (const auto* start = std::get_if<StartReplica>(&action)) started.push_back(start->replica);
        if (const auto* up = std::get_if<GiveUp>(&action)) why = up->error.message();
      }
      if (started.empty()) actions = machine.on(Tick{}, now = std::max(now, machine.wake_at()));
      for (const ReplicaId id : started) {
        (void)machine.on(ReplicaUp{id}, now);
        if (are_ready-- > 0) {
          (void)machine.on(ReplicaReady{id}, now);
        } else {
          ++deaths;
          actions = machine.on(ReplicaDied{id, "killed by signal 6"}, now += each);
        }
      }
    }
    CHECK_THAT(why, Catch::StartsWith(what) && Catch::Contains("killed by signal 6"));
    return deaths;
  };
  CHECK(given_up(1, 0, 1s, "no replica comes up: 5 starts in a row failed") == 5);
  CHECK(given_up(1, 0, 10s, "no replica comes up: 3 starts in a row failed") == 3);
  CHECK(given_up(2, 1, 1s, "too few replicas come up: 5 starts in a row failed") == 5);  // one is ready
}

TEST_CASE("other numbers of replicas: they start and end, and the load decides within the new numbers") {
  auto options = still(2);
  options.batch_time = 100ms;
  ServeWorld world(options);
  const auto scale = [&](Replicas replicas) {
    world.scale(replicas);
    for (int i = 0; i < 20; ++i) world.submit(1, false, 60s);
    world.run_for(20s);
    CHECK(world.machine.view().wanted == world.machine.view().ready);
    CHECK(world.machine.view().range.max == replicas.max);
    return world.machine.view().ready;
  };
  CHECK(scale(5) == 5);
  CHECK(scale({3, 4}) == 4);
  CHECK(scale(1) == 1);
  const int before_load = scale({1, 6});
  CHECK((before_load >= 1 && before_load <= 6));
  CHECK(world.answered == 80);
  CHECK(all(world.broken) == "");
}

TEST_CASE("a replica that hangs is killed, and what it had is answered by the next") {
  auto options = still();
  options.hangs = 100;
  ServeWorld world(options);
  world.run_for(50ms);
  world.submit(1, false, 120s);
  world.run_for(29s);
  CHECK(world.answered == 0);
  world.run_for(2s);
  CHECK(world.answered == 1);
  CHECK(all(world.broken) == "");
}

// `troupe serve status` named no failure of a replica that hung or did not come up in time.
TEST_CASE("a replica that does not come up in time is stopped as a failure, one at the end is not") {
  DeploymentConfig config;
  config.start_timeout = 60s;
  const auto failed = [](const std::vector<Action>& actions) {
    std::vector<int> all;
    for (const auto& action : actions) {
      if (const auto* stop = std::get_if<StopReplica>(&action)) all.push_back(stop->has_failed ? 1 : 0);
    }
    return all;
  };
  DeploymentMachine late(config);
  (void)late.start(Instant(1h));
  CHECK(failed(late.on(Tick{}, Instant(1h + 60s))) == std::vector<int>{1});
  DeploymentMachine drained(config);
  (void)drained.start(Instant(1h));
  CHECK(failed(drained.on(DrainAsked{}, Instant(1h + 1s))) == std::vector<int>{0});
}

// Was: "see whether a node has its CPUs free", while 3 GB of weights were on their way.
TEST_CASE("of a replica that does not come up in time it is told what it was at") {
  const auto told = [](const std::vector<Event>& events) {
    DeploymentMachine machine(DeploymentConfig{});
    (void)machine.start(Instant(1h));
    for (const Event& event : events) (void)machine.on(event, Instant(1h + 1s));
    std::string why;
    for (const auto& action : machine.on(Tick{}, Instant(1h + 120s))) {
      if (const auto* up = std::get_if<GiveUp>(&action)) why = up->error.message();
    }
    return why;
  };
  CHECK_THAT(told({}), Catch::Contains(
                           "or its constructor went on (a model that loads for long) (see in troupe status"));
  CHECK_THAT(told({ReplicaUp{1}, ReplicaLoads{1, 48U << 20, 96U << 20}}),
             Catch::Contains("its weights were on their way, 48 of 96 MiB were there (raise start_timeout)"));
  CHECK_THAT(told({ReplicaUp{1}, ReplicaLoads{1, 96U << 20, 96U << 20}}),
             Catch::Contains("it had its weights, and was at its first forward"));
}

TEST_CASE("a machine that was stopped itself does not call its replicas silent") {
  // Was: after a SIGSTOP of the program for a minute every replica was killed.
  ServeWorld world(still(2));
  world.run_for(5s);
  const auto actions = world.machine.on(Tick{}, world.now + 300s);
  for (const auto& action : actions) CHECK_FALSE(std::holds_alternative<StopReplica>(action));
}

// Was: the time in which the program was stopped counted as time in which no replica came up.
TEST_CASE("a machine that was stopped itself does not call its deployment out of order") {
  DeploymentMachine machine({.replicas = 1, .start_timeout = 20s});
  const Instant begin = 1h;
  (void)machine.start(begin);
  for (ReplicaId id = 1; id <= 2; ++id) {
    (void)machine.on(ReplicaUp{id}, begin);
    (void)machine.on(ReplicaDied{id, "killed by signal 6"}, begin);
  }
  REQUIRE(machine.wake_at() < begin + 1s);
  for (const auto& action : machine.on(Arrived{1000, 1, begin + 600s}, begin + 300s))
    CHECK_FALSE(std::holds_alternative<Fail>(action));
}

TEST_CASE("replicas follow the load: up at once, down when fewer were enough for the delay, losing nothing") {
  auto options = still({1, 4});
  options.config.downscale_delay = 60s;
  options.config.max_queue = 10'000;
  options.requests_a_second = 500;
  options.row_time = 4ms;  // 8 rows take 33 ms: 500 rows a second need 2 replicas, 3 to be busy for 70 %
  options.load = 20s;
  ServeWorld world(options);
  CHECK(world.machine.view().ready == 1);
  world.run_for(20s);
  CHECK(world.machine.view().ready >= 3);
  world.run_for(50s);
  CHECK(world.machine.view().ready >= 3);
  world.run_for(40s);
  CHECK(world.machine.view().ready == 1);
  CHECK(world.answered == world.submitted);
  CHECK(world.failed.empty());
  CHECK(all(world.broken) == "");

  options.requests_a_second = 20;
  ServeWorld calm(options);
  calm.run_for(20s);
  CHECK(calm.most_replicas == 1);
}

TEST_CASE(
    "to zero when nobody has asked for the delay, and back for a request, which waits for its replica") {
  auto options = still({0, 4});
  options.config.downscale_delay = 60s;
  ServeWorld world(options);
  CHECK(world.machine.view().ready == 1);  // its weights answer
  world.run_for(50s);
  CHECK(world.machine.view().ready == 1);
  world.run_for(15s);
  CHECK(world.machine.view().ready == 0);
  CHECK(world.machine.view().wanted == 0);
  CHECK(world.machine.view().starts_on_demand);
  world.run_for(600s);
  CHECK(world.starts[1] == 1);
  for (int i = 0; i < 3; ++i) world.submit(1, false, 60s);
  CHECK(world.machine.view().starting == 1);  // at once
  CHECK(world.machine.view().cold_starts == 0);
  world.submit(1, false, 1ms);
  world.run_for(10s);
  CHECK(world.answered == 3);
  CHECK(world.failed == std::map<Failure, int>{{Failure::kDeadline, 1}});
  CHECK(world.machine.view().cold_starts == 1);
  CHECK(world.machine.view().cold_start > 0s);
  CHECK(world.machine.view().cold_start <= 400ms);
  world.run_for(45s);
  CHECK(world.machine.view().ready == 1);  // the delay runs from the last request
  world.run_for(8s);
  CHECK(world.machine.view().ready == 0);
  world.submit(1, false, 60s);
  world.drain();  // what was accepted is answered
  world.run_for(10s);
  CHECK(world.answered == 4);
  CHECK(all(world.broken) == "");
}

TEST_CASE(
    "at zero, an update is tried on one replica, which then ends; one that fails leaves the old weights") {
  auto options = still({0, 4});
  options.config.downscale_delay = 10s;
  ServeWorld world(options);
  world.run_for(30s);
  REQUIRE(world.machine.view().ready == 0);
  world.update(ServeWorld::Weights::kGood);
  world.run_for(10s);
  CHECK(world.updated == 1);
  CHECK(world.machine.view().version == 2);
  CHECK(world.machine.view().ready == 0);
  world.update(ServeWorld::Weights::kDoNotFit);
  world.run_for(10s);
  CHECK(world.not_updated == 1);
  world.submit(1, false, 60s);
  world.run_for(5s);
  CHECK(world.answers[2] == 1);
  world.scale({2, 3});
  world.run_for(5s);
  CHECK(world.machine.view().ready == 2);
  CHECK(all(world.broken) == "");
}

TEST_CASE("with bursts far apart a deployment goes to zero and back, and loses nothing", "[simulation]") {
  std::uint64_t cold_starts = 0;
  int deaths = 0, starts = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SeededRandom random(seed);
    auto options = still({0, 1 + static_cast<int>(seed % 4)});
    options.seed = seed;
    options.config.downscale_delay = 1s + static_cast<int>(random.below(3)) * 1s;
    options.config.max_queue = 100'000;
    options.config.batch_wait = seed % 2 == 0 ? 0ms : 5ms;
    options.load = 120s;
    options.start_fails = 0.1;
    options.deaths = seed % 3 == 0 ? 0.05 : 0;
    options.updates = seed % 5 == 0 ? 0.02 : 0;
    options.deadly_weights = false;
    ServeWorld world(options);
    Duration when{0};
    while (when < 110s) {
      when += Duration(static_cast<std::int64_t>(20'000'000'000. * random.uniform()));
      const auto burst = 1 + random.below(100);
      world.at(when, [&world, burst] {
        for (std::uint64_t i = 0; i < burst; ++i) world.submit(1 + i % 3, false, 60s);
      });
    }
    world.run();
    INFO("seed " << seed << "\n" << all(world.broken));
    REQUIRE(world.broken.empty());
    CHECK(world.failed.empty());
    CHECK(world.answered == world.submitted);
    cold_starts += world.machine.view().cold_starts;
    deaths += world.deaths;
    for (const auto& [version, count] : world.starts) starts += count;
  }
  CHECK(cold_starts > 1000);
  CHECK(deaths > 100);
  CHECK(starts > static_cast<int>(cold_starts));
}

TEST_CASE("an update: as many are ready as before, and what comes after it the new weights answer") {
  auto options = still(8);
  options.requests_a_second = 300;
  ServeWorld world(options);
  world.run_for(1s);
  world.fewest_ready = 1000;
  int most = 0;
  CHECK(world.update(ServeWorld::Weights::kGood) == 2);
  while (world.updated == 0 && world.now < 1h + 60s) {
    world.run_for(1ms);
    const auto view = world.machine.view();
    most = std::max(most, view.starting + view.warming + view.ready);
    if (view.ready == 8 && view.starting + view.warming == 1) CHECK(view.rolls_out == 2);  // one first
  }
  CHECK(world.updated == 1);
  CHECK(world.fewest_ready == 8);
  CHECK(most == 10);  // a quarter more
  CHECK(world.machine.view().version == 2);
  const int before = world.answers[1];
  CHECK(world.answers[2] > 0);  // of those that were ready before all were
  world.run_for(1s);
  CHECK(world.answers[1] == before);
  world.run_for(10s);
  CHECK(world.answered == world.submitted);
  CHECK(all(world.broken) == "");
}

TEST_CASE("an update of which no replica comes up fails, says why, and takes no replica of the old") {
  using Weights = ServeWorld::Weights;
  for (const auto& [weights, why, starts] : {std::tuple{Weights::kDoNotFit, "they do not fit", 1},
                                             {Weights::kDieInWarmUp, "in its warm-up", 3},
                                             {Weights::kNoRoom, "there is no room", 5}}) {
    auto options = still(2);
    options.requests_a_second = 100;
    options.load = 300s;
    ServeWorld world(options);
    world.fewest_ready = 1000;
    world.update(weights);
    world.run_for(150s);
    INFO(why << ": " << world.last_update_error);
    CHECK(world.not_updated == 1);
    CHECK(world.last_update_error.find(why) != std::string::npos);
    CHECK(world.fewest_ready == 2);
    CHECK(world.starts[2] >= starts);
    CHECK(world.machine.view().version == 1);
    CHECK(world.update(Weights::kGood) == 3);  // and the next one does
    world.run_for(10s);
    CHECK(world.updated == 1);
    CHECK(world.failed.empty());
    CHECK(all(world.broken) == "");
  }
}

// Was: the second one ended with the update and was looked up all the same: std::out_of_range, after which no
// timer ran: the update did not end, and no replica was looked after until something else happened.
TEST_CASE("replicas of an update that are late at the same moment end it once") {
  DeploymentMachine machine({.replicas = 5, .start_timeout = 5s});
  const Instant begin = 1h;
  (void)machine.start(begin);
  const auto comes_up = [&](ReplicaId id) {
    (void)machine.on(ReplicaUp{id}, begin);
    (void)machine.on(ReplicaReady{id}, begin);
  };
  for (ReplicaId id = 1; id <= 5; ++id) comes_up(id);
  (void)machine.on(UpdateAsked{2}, begin);
  comes_up(6);
  REQUIRE(machine.view().starting == 2);
  REQUIRE(machine.wake_at() == begin + 5s);
  int failed = 0;
  for (const auto& action : machine.on(Tick{}, begin + 5s))
    failed += std::holds_alternative<UpdateFailed>(action);
  CHECK(failed == 1);
  CHECK(machine.view().rolls_out == 0);
  CHECK(machine.wake_at() <= begin + 10s);
}

TEST_CASE("new weights that replicas die of under requests go back, and the old answer those requests") {
  auto options = still(8);
  options.requests_a_second = 500;
  options.load = 60s;
  options.config.max_queue = 10'000;
  ServeWorld world(options);
  world.update(ServeWorld::Weights::kDieOfRequests);
  world.run_for(30s);
  CHECK(world.not_updated == 1);
  CHECK(world.last_update_error.find("died in a row") != std::string::npos);
  CHECK(world.machine.view().ready == 8);
  CHECK(world.failed.empty());
  CHECK(world.answers[2] == 0);
  CHECK(all(world.broken) == "");
}

TEST_CASE("a roll-out is ended by a word, by the end of the deployment, and allows no second one beside it") {
  ServeWorld world(still(2));
  world.update(ServeWorld::Weights::kGood);
  world.update(ServeWorld::Weights::kGood);
  CHECK(world.last_update_error.find("another update is under way") != std::string::npos);
  CHECK(world.machine.view().rolls_out == 2);
  world.hear(UpdateCancelled{});
  CHECK(world.last_update_error.find("rolled back") != std::string::npos);
  world.run_for(1s);
  CHECK(world.machine.view().starting + world.machine.view().warming == 0);
  world.hear(UpdateCancelled{});  // nothing runs
  CHECK(world.not_updated == 2);
  world.update(ServeWorld::Weights::kGood);
  world.drain();
  CHECK(world.not_updated == 3);
  CHECK(world.last_update_error.find("the deployment ends") != std::string::npos);
  CHECK(all(world.broken) == "");
}

TEST_CASE("a deployment that others ask refuses clients when it drains, and ends after those others") {
  auto options = still();
  options.callers = 2;
  ServeWorld world(options);
  world.submit(1, false, 60s, true);
  (void)world.machine.on(DrainAsked{.callers_take = 60s}, world.now);
  CHECK(world.machine.view().callers == 2);
  world.submit(1, false, 60s);
  CHECK(world.failed[Failure::kUnavailable] == 1);
  world.run_for(20s + 1s);  // more than its own drain_timeout
  world.submit(1, false, 60s, true);
  world.run_for(1s);
  CHECK(world.answered == 2);
  CHECK(world.machine.view().ready == 1);
  world.caller_leaves();
  CHECK(world.machine.view().ready == 1);
  (void)world.machine.on(CallerLeft{}, world.now);
  CHECK(world.machine.view().ready == 0);
  CHECK(all(world.broken) == "");
}

TEST_CASE("a deployment does not wait for those that ask it longer than it was told they take") {
  DeploymentMachine machine({.replicas = 1, .drain_timeout = 20s});
  (void)machine.start(0s);
  (void)machine.on(CallerJoined{}, 0s);
  (void)machine.on(DrainAsked{.callers_take = 30s}, 1s);
  (void)machine.on(Tick{}, 50s);
  CHECK(machine.view().starting == 1);
  CHECK(machine.wake_at() == 51s);
  const auto actions = machine.on(Tick{}, 51s);
  CHECK(std::holds_alternative<Stopped>(actions.back()));

  DeploymentMachine at_once({.replicas = 1});
  (void)at_once.start(0s);
  (void)at_once.on(CallerJoined{}, 0s);
  CHECK(std::holds_alternative<Stopped>(at_once.on(DrainAsked{.at_once = true}, 1s).back()));
}

// That one left was refused before it was told of: a program whose child began again as its parent ended
// died.
TEST_CASE("of another that asks it a deployment may hear the end first") {
  DeploymentMachine machine({.replicas = 1});
  (void)machine.start(0s);
  (void)machine.on(CallerLeft{}, 0s);
  (void)machine.on(CallerJoined{}, 0s);
  CHECK(machine.view().callers == 0);
  CHECK(std::holds_alternative<Stopped>(machine.on(DrainAsked{}, 1s).back()));
}

TEST_CASE("what another deployment refused fails as that said, and not as the model's fault") {
  DeploymentMachine machine({.replicas = 1});
  (void)machine.start(0s);
  (void)machine.on(ReplicaUp{1}, 1s);
  (void)machine.on(ReplicaReady{1}, 1s);
  (void)machine.on(Arrived{7, 1, 60s}, 1s);
  const Duration later = 3s;
  const Verdict refused{Verdict::What::kRefused, "'first' is full", Failure::kQueueFull, later.count()};
  const auto actions = machine.on(BatchDone{1, 1, {refused}, {}}, 1s);
  const Fail& failed = std::get<Fail>(actions.at(0));
  CHECK(failed.failure == Failure::kQueueFull);
  CHECK(failed.retry_after == later);
  CHECK(failed.why == "'first' is full");
}

// They were there until the node's time was over, and were killed then.
TEST_CASE("a replica whose node drains goes on until another is ready, and ends when it has answered") {
  auto options = still(2);
  options.batch_time = 2s;
  ServeWorld world(options);
  const auto before = world.ready_replicas();
  REQUIRE(before.size() == 2);
  world.fewest_ready = 1000;
  world.submit(1, false, 60s);
  world.submit(1, false, 60s);
  world.node_drains(before[0]);
  CHECK(world.machine.view().starting == 1);
  world.run_for(1s);  // the other one is ready, and this one computes
  CHECK(world.machine.view().ready == 2);
  CHECK(world.machine.view().draining == 1);
  world.run_for(1500ms);
  CHECK(world.machine.view().draining == 0);
  CHECK(world.fewest_ready == 2);
  CHECK(world.answered == 2);
  CHECK(all(world.broken) == "");

  // One that is not ready yet goes at once; one that stays after all is one of them again.
  const auto now = world.ready_replicas();
  world.kill(now[0]);
  world.run_for(10ms);
  REQUIRE(world.machine.view().starting == 1);
  world.node_drains(4);
  CHECK(world.starts[1] == 5);
  world.run_for(1s);
  world.node_drains(now[1]);
  world.hear(ReplicaLeaves{now[1], true});
  world.run_for(5s);
  CHECK(world.machine.view().ready == 2);
  CHECK(all(world.broken) == "");
}

TEST_CASE("while nodes drain and come back no request fails, and no replica is missed", "[simulation]") {
  int leaves = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    auto options = still({1 + static_cast<int>(seed % 3), 6});
    options.seed = seed;
    options.config.max_queue = 100'000;
    options.config.downscale_delay = 2s;
    options.requests_a_second = 300;
    options.load = 10s;
    options.leaves = 0.2;
    options.grace = 4s;
    options.updates = seed % 2 == 0 ? 0.3 : 0;
    options.deadly_weights = false;
    ServeWorld world(options);
    world.fewest_ready = 1000;
    world.run_for(9s);
    const int fewest = world.fewest_ready;
    world.run();
    INFO("seed " << seed << "\n" << all(world.broken));
    REQUIRE(world.broken.empty());
    CHECK(world.failed.empty());
    CHECK(world.answered == world.submitted);
    // An update that is called back may leave fewer for a moment.
    if (options.updates == 0) CHECK(fewest >= options.config.replicas.min);
    leaves += world.leaves;
  }
  CHECK(leaves > 300);
}

TEST_CASE("every request ends once, whatever happens to replicas, clients, weights and the scale",
          "[simulation]") {
  int answered = 0, deaths = 0, updated = 0, not_updated = 0;
  std::map<Failure, int> failed;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SeededRandom random(seed);
    const auto pick = [&](double most) { return random.below(3) == 0 ? 0.0 : most * random.uniform(); };
    WorldOptions options;
    options.seed = seed;
    options.config.replicas = {static_cast<int>(random.below(3)), 2 + static_cast<int>(random.below(4))};
    options.config.max_batch = 1 + static_cast<std::int64_t>(random.below(32));
    options.config.max_queue = 8 + static_cast<std::int64_t>(random.below(500));
    options.config.batch_wait = random.below(2) == 0 ? 0ms : 5ms;
    options.config.downscale_delay = 1s;
    options.config.health_period = 200ms;
    options.config.health_timeout = 500ms;
    options.config.drain_timeout = 2s;
    options.load = 3s;
    options.requests_a_second = 20 + pick(400);
    options.most_rows = 1 + static_cast<std::int64_t>(random.below(40));
    options.timeout = random.below(2) == 0 ? 60s : 40ms;
    options.row_time = Duration(static_cast<std::int64_t>(random.below(2'000'000)));
    options.leave = pick(0.2);
    options.poison = pick(0.01);
    options.throws = pick(0.05);
    options.start_fails = pick(0.5);
    options.deaths = pick(1);
    options.hangs = pick(0.3);
    options.updates = pick(1);
    options.scales = pick(0.5);
    options.leaves = pick(0.5);
    options.callers = static_cast<int>(random.below(3));
    ServeWorld world(options);
    world.run();
    INFO("seed " << seed << "\n" << all(world.broken));
    REQUIRE(world.broken.empty());
    answered += world.answered;
    deaths += world.deaths;
    updated += world.updated;
    not_updated += world.not_updated;
    for (const auto& [failure, count] : world.failed) failed[failure] += count;
  }
  CHECK(answered > 100'000);
  CHECK(deaths > 1000);
  CHECK(updated > 1000);
  CHECK(not_updated > 1000);
  CHECK(failed.size() == kFailures);  // each kind happened
}

TEST_CASE("while replicas die one at a time and weights change no request fails", "[simulation]") {
  int updated = 0, deaths = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    WorldOptions options;
    options.seed = seed;
    options.config.replicas = {1, 3};
    options.config.max_queue = 100'000;
    options.config.downscale_delay = 1s;
    options.load = 5s;
    options.requests_a_second = 300;
    options.updates = seed % 2 == 0 ? 1 : 0;
    options.deadly_weights = false;
    ServeWorld world(options);
    for (int i = 1; i <= 4; ++i) {
      world.at(i * 1s, [&] {
        if (const auto ready = world.ready_replicas(); !ready.empty()) world.kill(ready.back());
      });
    }
    world.run();
    INFO("seed " << seed << "\n" << all(world.broken));
    REQUIRE(world.broken.empty());
    CHECK(world.failed.empty());
    CHECK(world.answered == world.submitted);
    updated += world.updated;
    deaths += world.deaths;
  }
  CHECK(updated > 500);
  CHECK(deaths > 1000);
}

TEST_CASE("weights that are good roll out while the scale changes, and no replica is missed",
          "[simulation]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    auto options = still({1 + static_cast<int>(seed % 3), 6});
    options.seed = seed;
    options.config.max_queue = 100'000;
    options.config.downscale_delay = 2s;
    options.requests_a_second = 500;
    options.row_time = 2ms;
    ServeWorld world(options);
    for (int i = 1; i <= 3; ++i) world.at(i * 3s, [&] { world.update(ServeWorld::Weights::kGood); });
    world.fewest_ready = 1000;
    world.run_for(30s);
    INFO("seed " << seed << "\n" << all(world.broken) << world.last_update_error);
    REQUIRE(world.broken.empty());
    CHECK(world.updated == 3);
    CHECK(world.fewest_ready >= options.config.replicas.min);
    CHECK(world.answered == world.submitted);
  }
}
