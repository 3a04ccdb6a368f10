// Several proxies of one deployment: what each may send, what a replica waits for before it ends, and seeds
// of deaths of replicas and proxies, lost words and weights that roll out.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "actors/serve/credits.hpp"
#include "actors/serve/deployment_machine.hpp"
#include "actors/serve/fleet_machine.hpp"
#include "actors/serve/proxy_machine.hpp"
#include "runtime/core/random.hpp"
#include "tests/actors/serve/due_queue.hpp"

using namespace troupe;
using namespace troupe::serve;
using namespace std::chrono_literals;

namespace {

struct Options {
  std::uint64_t seed = 1;
  DeploymentConfig config{};
  int proxies = 3;  ///< beside the program itself
  Duration load{std::chrono::seconds(4)};
  double requests_a_second = 400;
  double replica_deaths = 0, proxy_deaths = 0, proxy_hangs = 0;  ///< a second
  double lost_words = 0;                                         ///< share of what proxies are told
  double updates = 0, scales = 0;  ///< share of the moments, half a second apart
};

/// The program's machine is proxy 0.
class ProxyWorld {
 public:
  explicit ProxyWorld(const Options& options)
      : now(1h), machine(options.config), options_(options), random_(options.seed) {
    carry_out(0, machine.start(now));
    while (!machine.is_up() && step(2h)) {
    }
    for (int i = 0; i < options.proxies; ++i) join();
    load_until_ = now + options.load;
    at(0s, [this] { arrive(); });
    at(10ms, [this] { misfortune(); });
    at(500ms, [this] { change(); });
  }

  void run() {
    run_for(options_.load);
    draining_ = true;
    hear(DrainAsked{});
    const Instant latest = now + options_.config.drain_timeout + 1s;
    while (broken.empty() && !stopped_ && step(latest)) {
    }
    rule(stopped_, "it did not stop");
    run_for(1s);  // what was told last
    for (const auto& [id, request] : requests_)
      rule(request.ends == 1 || lost_.contains(request.proxy), "request " + std::to_string(id) + " was lost");
    for (const auto& [id, replica] : replicas_) rule(replica.dead, "a replica was left running");
  }
  void run_for(Duration time) {
    const Instant until = now + time;
    while (broken.empty() && step(until)) {
    }
  }
  ProxyId join() {
    const ProxyId id = ++last_proxy_;
    proxies_[id] = std::make_unique<ProxyMachine>(options_.config);
    armed_[id] = Instant::max();
    hear(ProxyJoined{id});
    return id;
  }
  RequestId submit(ProxyId to, std::int64_t rows) {
    const RequestId id = ++submitted;
    requests_[id] = {to, rows};
    const Arrived event{id, rows, now + 60s};
    to == 0 ? hear(event) : carry_out(to, proxies_.at(to)->arrived(event, now));
    return id;
  }
  void kill_replica(ReplicaId id) {
    if (replicas_[id].dead) return;
    replicas_[id].dead = true;
    ++deaths;
    at(some(5ms), [this, id] { hear(ReplicaDied{id, "killed by signal 9"}); });
    for (const auto& batch : replicas_[id].queue) lose(id, batch.from);
  }
  void update() {
    const VersionId version = ++last_version_;
    if (rolls_out_ == 0) rolls_out_ = version;
    hear(UpdateAsked{version});
  }

  std::vector<std::string> broken;
  std::map<Failure, int> failed;
  std::map<ProxyId, int> answered;
  RequestId submitted = 0;
  int deaths = 0, dropped = 0, updated = 0, gone = 0;
  std::size_t most_batches = 0;  ///< at a replica, of one proxy
  bool told_nothing = false;
  Instant now;
  DeploymentMachine machine;

  std::vector<ReplicaId> ready_replicas() const {
    std::vector<ReplicaId> ids;
    for (const auto& [id, replica] : replicas_)
      if (replica.ready && !replica.dead) ids.push_back(id);
    return ids;
  }
  std::vector<ProxyId> live_proxies() const {
    std::vector<ProxyId> ids;
    for (const auto& [id, proxy] : proxies_) ids.push_back(id);
    return ids;
  }
  const ProxyMachine& proxy(ProxyId id) const { return *proxies_.at(id); }
  void hear(const Event& event) { carry_out(0, machine.on(event, now)); }

 private:
  struct Request {
    ProxyId proxy = 0;
    std::int64_t rows = 1;
    int ends = 0;
  };
  struct Batch {
    ProxyId from = 0;
    BatchId id = 0;
    std::vector<RequestId> requests;
  };
  struct Replica {
    VersionId version = 0;
    bool ready = false, dead = false, computing = false;
    std::vector<Batch> queue;
    Credits credits;
  };

  void rule(bool holds, const std::string& what) {
    if (!holds) broken.push_back(what + " at " + std::to_string(to_seconds(now - 1h)) + " s");
  }
  bool chance(double probability) { return random_.uniform() < probability; }
  Duration some(Duration most) {
    return Duration(static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(most.count()) + 1)));
  }
  void at(Duration delay, std::function<void()> what) { due_.add(now + delay, std::move(what)); }

  bool step(Instant until) {
    Instant wake = machine.wake_at();
    ProxyId whose = 0;
    for (const auto& [id, proxy] : proxies_) {
      if (proxy->wake_at() < wake) {
        wake = proxy->wake_at();
        whose = id;
      }
    }
    const Instant next = due_.next();
    if (std::min(wake, next) > until) {
      now = std::max(now, until);
      return false;
    }
    if (wake <= next) {
      now = std::max(now, wake);
      whose == 0 ? hear(Tick{}) : carry_out(whose, proxies_.at(whose)->tick(now));
      return true;
    }
    now = std::max(now, next);
    due_.run_next();
    return true;
  }

  void arrive() {
    if (now >= load_until_) return;
    const auto live = live_proxies();
    const auto pick = random_.below(live.size() + 1);
    submit(pick == 0 ? 0 : live[pick - 1], 1 + static_cast<std::int64_t>(random_.below(3)));
    at(some(std::chrono::duration_cast<Duration>(2s / options_.requests_a_second)), [this] { arrive(); });
  }

  void kill_proxy(ProxyId id) {
    if (proxies_.erase(id) == 0) return;
    lost_.insert(id);
    ++gone;
    at(some(20ms), [this, id] {
      hear(ProxyLeft{id});
      if (!draining_)
        at(some(200ms), [this] {
          if (!draining_) join();
        });
    });
  }

  void misfortune() {
    if (now >= load_until_) return;
    for (const ReplicaId id : ready_replicas())
      if (chance(options_.replica_deaths / 100)) kill_replica(id);
    for (const ProxyId id : live_proxies()) {
      if (chance(options_.proxy_deaths / 100)) kill_proxy(id);
      if (chance(options_.proxy_hangs / 100)) hung_.insert(id);
    }
    at(10ms, [this] { misfortune(); });
  }

  void change() {
    if (now >= load_until_) return;
    if (chance(options_.updates)) update();
    if (chance(options_.scales)) {
      const int least = static_cast<int>(random_.below(4));
      hear(ScaleAsked{{least, std::max(1, least + static_cast<int>(random_.below(3)))}});
    }
    at(500ms, [this] { change(); });
  }

  void lose(ReplicaId replica, ProxyId from) {
    if (from == 0) return;  // its monitor tells
    at(some(5ms), [this, replica, from] {
      if (const auto proxy = proxies_.find(from); proxy != proxies_.end())
        carry_out(from, proxy->second->replica_lost(replica, "killed by signal 9", true, now));
    });
  }

  void compute(ReplicaId id) {
    Replica& replica = replicas_[id];
    if (replica.queue.empty() || replica.dead) return;
    replica.computing = true;
    const Batch batch = replica.queue.front();
    const std::uint32_t credits = replica.credits.grant(batch.from, now);
    std::int64_t rows = 0;
    for (const RequestId one : batch.requests) rows += requests_[one].rows;
    const Duration computed = 1ms + rows * 200us;
    at(computed, [this, id, batch, computed, credits] {
      Replica& self = replicas_[id];
      if (self.dead) return;
      self.computing = false;
      self.queue.erase(self.queue.begin());
      compute(id);
      at(some(200us), [this, id, batch, computed, credits] {
        const BatchDone done{id, batch.id, std::vector<Verdict>(batch.requests.size()), computed, credits};
        if (batch.from == 0) return hear(done);
        if (const auto proxy = proxies_.find(batch.from); proxy != proxies_.end())
          carry_out(batch.from, proxy->second->done(done, now));
      });
    });
  }

  void carry_out(ProxyId who, const std::vector<Action>& actions) {
    for (const Action& action : actions) std::visit([&](const auto& one) { obey(who, one); }, action);
  }
  void obey(ProxyId, const StartReplica& action) {
    replicas_[action.replica].version = action.version;
    at(some(100ms), [this, id = action.replica] {
      if (replicas_[id].dead) return;
      hear(ReplicaUp{id});
      at(some(100ms), [this, id] {
        if (replicas_[id].dead) return;
        replicas_[id].ready = true;
        hear(ReplicaReady{id});
      });
    });
  }
  void obey(ProxyId, const StopReplica& action) {
    Replica& replica = replicas_[action.replica];
    for (const Batch& batch : replica.queue)
      rule(replica.dead || draining_ || (batch.from != 0 && !proxies_.contains(batch.from)),
           "a replica was stopped with a batch of proxy " + std::to_string(batch.from));
    replica.dead = true;
    for (const Batch& batch : replica.queue) lose(action.replica, batch.from);
  }
  void obey(ProxyId who, const SendBatch& action) {
    Replica& replica = replicas_[action.replica];
    std::int64_t rows = 0;
    for (const RequestId id : action.requests) {
      rule(requests_[id].ends == 0 && requests_[id].proxy == who, "a request that is over was sent");
      rows += requests_[id].rows;
    }
    rule(rows <= options_.config.max_batch || action.requests.size() == 1, "a batch is too large");
    if (replica.dead) return who == 0 ? void() : lose(action.replica, who);
    rule(replica.ready && (replica.version == routable_ || replica.version == rolls_out_),
         "a batch for weights that ended, or a replica that is not ready");
    replica.queue.push_back({who, action.batch, action.requests});
    const auto mine = static_cast<std::size_t>(std::count_if(
        replica.queue.begin(), replica.queue.end(), [&](const Batch& one) { return one.from == who; }));
    rule(mine <= 2, "a proxy has more than two batches at a replica");
    most_batches = std::max(most_batches, mine);
    if (!replica.computing) compute(action.replica);
  }
  void obey(ProxyId, const CheckReplica& action) {
    if (replicas_[action.replica].dead) return;
    at(some(1ms), [this, id = action.replica] { hear(ReplicaAlive{id}); });
  }
  void obey(ProxyId who, const Deliver& action) {
    ++answered[who];
    rule(++requests_[action.request].ends == 1, "a request ended twice");
  }
  void obey(ProxyId, const Fail& action) {
    ++failed[action.failure];
    rule(++requests_[action.request].ends == 1, "a request ended twice");
    rule(!action.why.empty(), "a failure does not say why");
  }
  void obey(ProxyId, const GiveUp&) { rule(false, "it gave up"); }
  void obey(ProxyId, const Updated& action) {
    for (const auto& [id, replica] : replicas_)
      rule(replica.dead || replica.version == action.version, "a replica of old weights is left");
    routable_ = action.version;
    rolls_out_ = 0;
    ++updated;
  }
  void obey(ProxyId, const UpdateFailed& action) {
    if (action.version == rolls_out_) rolls_out_ = 0;
  }
  void obey(ProxyId, const TellProxy& action) {
    if (told_nothing) return;
    const ProxyId id = action.proxy;
    at(some(5ms), [this, id, routes = action.routes] {
      const auto proxy = proxies_.find(id);
      if (proxy == proxies_.end() || (hung_.contains(id) && !routes.ended)) return;
      if (chance(options_.lost_words) && !routes.ended)
        return at(some(5ms), [this, id] { hear(ProxyAnswered{id, {}}); });
      carry_out(id, proxy->second->told(routes, now));
      const ProxyReport report = proxy->second->report();
      at(some(5ms), [this, id, report] { hear(ProxyAnswered{id, report}); });
    });
  }
  void obey(ProxyId, const DropProxy& action) {
    rule(!action.reason.empty(), "a proxy is dropped for no reason");
    ++dropped;
    kill_proxy(action.proxy);
  }
  void obey(ProxyId, const Stopped&) { stopped_ = true; }

  const Options options_;
  SeededRandom random_;
  DueQueue due_;
  std::map<RequestId, Request> requests_;
  std::map<ReplicaId, Replica> replicas_;
  std::map<ProxyId, std::unique_ptr<ProxyMachine>> proxies_;
  std::map<ProxyId, Instant> armed_;
  std::set<ProxyId> lost_, hung_;
  ProxyId last_proxy_ = 0;
  VersionId routable_ = 1, rolls_out_ = 0, last_version_ = 1;
  Instant load_until_{};
  bool draining_ = false, stopped_ = false;
};

Options still(Replicas replicas, int proxies) {
  Options options;
  options.config.replicas = replicas;
  options.config.max_batch = 8;
  options.config.max_queue = 32;
  options.proxies = proxies;
  options.load = 0s;
  return options;
}

}  // namespace

TEST_CASE("a replica takes two batches from a proxy that is alone, and one from each of several") {
  Credits credits;
  CHECK(credits.grant(1, Instant(0s)) == 2);
  CHECK(credits.grant(1, Instant(1ms)) == 2);
  CHECK(credits.grant(2, Instant(2ms)) == 1);
  CHECK(credits.grant(1, Instant(3ms)) == 1);
  CHECK(credits.grant(2, Instant(1100ms)) == 2);  // the first has sent nothing for a second
}

TEST_CASE("the queue is one for all proxies: each may fill what the others leave") {
  ProxyWorld world(still(1, 2));
  world.run_for(1s);
  const ReplicaId only = world.ready_replicas().at(0);
  world.submit(1, 8);
  for (int i = 0; i < 4; ++i) world.submit(1, 8);  // one is computed, one is behind it
  CHECK(world.failed.empty());
  world.run_for(20ms);
  for (int i = 0; i < 12; ++i) world.submit(1, 4);
  world.kill_replica(only);  // nothing is computed, and all of it waits
  world.run_for(300ms);
  (void)world.submit(2, 8);
  (void)world.submit(2, 8);
  CHECK(world.failed[Failure::kQueueFull] >= 1);
  world.run_for(10s);
  CHECK(all(world.broken) == "");
}

TEST_CASE("a proxy goes on with what it was told last while nobody tells it anything") {
  auto options = still(2, 1);
  options.config.health_timeout = 30s;
  ProxyWorld world(options);
  world.run_for(1s);
  world.told_nothing = true;
  for (int i = 0; i < 50; ++i) {
    world.submit(1, 2);
    world.run_for(100ms);
  }
  CHECK(world.answered[1] == 50);
  CHECK(all(world.broken) == "");
}

TEST_CASE(
    "at zero, a request that a proxy accepts waits there, and starts a replica when the program hears of "
    "it") {
  auto options = still({0, 2}, 1);
  options.config.downscale_delay = 5s;
  ProxyWorld world(options);
  world.run_for(20s);
  REQUIRE(world.ready_replicas().empty());
  CHECK(world.proxy(1).is_ready());
  CHECK(world.proxy(1).routes().replicas.empty());
  world.submit(1, 2);
  world.run_for(2s);
  CHECK(world.answered[1] == 1);
  CHECK(world.failed.empty());
  CHECK(world.machine.view().cold_starts == 1);
  CHECK(all(world.broken) == "");
}

// The next start of any replica was counted as a cold one, of all the time since.
TEST_CASE("a replica that is taken back on its way to zero is no cold start") {
  auto options = still({0, 2}, 1);
  options.config.downscale_delay = 5s;
  options.config.health_timeout = 30s;
  ProxyWorld world(options);
  world.run_for(1s);
  world.told_nothing = true;
  world.run_for(10s);
  REQUIRE(world.machine.view().wanted == 0);
  REQUIRE(world.machine.view().draining == 1);  // the proxy may send it a batch yet
  world.submit(0, 2);
  CHECK(world.machine.view().ready == 1);
  world.hear(ScaleAsked{{2, 2}});
  world.run_for(2s);
  CHECK(world.machine.view().ready == 2);
  CHECK(world.answered[0] == 1);
  CHECK(world.machine.view().cold_starts == 0);
  CHECK(all(world.broken) == "");
}

TEST_CASE("a replica that is not wanted any more ends when every proxy has seen that") {
  ProxyWorld world(still(2, 2));
  world.run_for(1s);
  world.told_nothing = true;
  world.hear(ScaleAsked{1});
  world.run_for(3s);
  CHECK(world.ready_replicas().size() == 2);  // they may send it a batch yet
  world.run_for(60s);                         // by then both are dropped
  CHECK(world.dropped >= 2);
  CHECK(world.ready_replicas().size() == 1);
  CHECK(all(world.broken) == "");
}

// It waited for the proxies, which were told of a replica without an address; and it was made ready, and got
// batches, when one more was wanted again.
TEST_CASE("a replica that is not wanted any more before it is ready ends at once") {
  ProxyWorld world(still(1, 2));
  world.run_for(1s);
  world.told_nothing = true;
  world.hear(ScaleAsked{2});
  CHECK(world.machine.view().starting == 1);
  world.hear(ScaleAsked{1});
  CHECK(world.machine.view().starting == 0);
  CHECK(world.machine.view().draining == 0);
  world.hear(ScaleAsked{2});
  CHECK(world.machine.view().starting == 1);
  CHECK(world.machine.view().ready == 1);
  world.told_nothing = false;
  world.run_for(1s);
  CHECK(world.ready_replicas().size() == 2);
  CHECK(all(world.broken) == "");
}

TEST_CASE("with several proxies every request ends once, whatever dies", "[simulation]") {
  std::map<Failure, int> failed;
  int answered = 0, deaths = 0, updated = 0, gone = 0, dropped = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    SeededRandom random(seed);
    const auto pick = [&](double most) { return random.below(3) == 0 ? 0.0 : most * random.uniform(); };
    Options options;
    options.seed = seed;
    options.proxies = 1 + static_cast<int>(random.below(4));
    options.config.replicas = {static_cast<int>(random.below(3)), 2 + static_cast<int>(random.below(3))};
    options.config.max_batch = 3 + static_cast<std::int64_t>(random.below(30));
    options.config.max_queue = 40 + static_cast<std::int64_t>(random.below(500));
    options.config.batch_wait = random.below(2) == 0 ? 0ms : 5ms;
    options.config.downscale_delay = 1s;
    options.config.health_period = 200ms;
    options.config.health_timeout = 700ms;
    options.requests_a_second = 100 + pick(600);
    options.replica_deaths = pick(0.5);
    options.proxy_deaths = pick(0.5);
    options.proxy_hangs = pick(0.2);
    options.lost_words = pick(0.5);
    options.updates = pick(1);
    options.scales = pick(0.5);
    ProxyWorld world(options);
    world.run();
    INFO("seed " << seed << "\n" << all(world.broken));
    REQUIRE(world.broken.empty());
    for (const auto& [proxy, count] : world.answered) answered += proxy == 0 ? 0 : count;
    deaths += world.deaths;
    updated += world.updated;
    gone += world.gone;
    dropped += world.dropped;
  }
  CHECK(answered > 100'000);
  CHECK(deaths > 300);
  CHECK(updated > 300);
  CHECK(gone > 300);
  CHECK(dropped > 30);
}

TEST_CASE("while proxies come and go and weights roll out, no request of a living one fails",
          "[simulation]") {
  int updated = 0, gone = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Options options;
    options.seed = seed;
    options.config.replicas = {2, 4};
    options.config.max_queue = 100'000;
    options.config.downscale_delay = 1s;
    options.proxy_deaths = 0.3;
    options.lost_words = seed % 2 == 0 ? 0.2 : 0;
    options.updates = options.scales = 0.7;
    ProxyWorld world(options);
    world.run();
    INFO("seed " << seed << "\n" << all(world.broken));
    REQUIRE(world.broken.empty());
    CHECK(world.failed.empty());
    updated += world.updated;
    gone += world.gone;
  }
  CHECK(updated > 300);
  CHECK(gone > 300);
}

TEST_CASE("a proxy on each node, started again where it dies, ever later") {
  const NodeId one{1}, two{2};
  FleetMachine fleet({.first_pause = 100ms, .longest_pause = 10s});
  Instant now(1h);
  const auto started = [&](const std::vector<NodeId>& nodes) { return fleet.nodes(nodes, now); };
  CHECK(!fleet.all_placed());  // nobody knows the nodes
  auto starts = started({one, two});
  REQUIRE(starts.size() == 2);
  CHECK(started({one, two}).empty());
  const ProxyId first = starts[0].proxy;
  CHECK(starts[0].port == 0);
  fleet.listens(first, 4321, now);
  fleet.listens(starts[1].proxy, 4322, now);
  fleet.placed(starts[1].proxy);
  CHECK(!fleet.all_placed());  // the first waits for the place of another one
  fleet.placed(first);
  CHECK(fleet.all_placed());
  fleet.failed(first, now);
  CHECK(!fleet.all_placed());
  starts = started({one, two});
  REQUIRE(starts.size() == 1);  // at once
  CHECK(!fleet.all_placed());
  fleet.leaves(starts[0].proxy, false);
  CHECK(fleet.all_placed());  // nobody waits for a node that drains
  fleet.leaves(starts[0].proxy, true);
  CHECK(!fleet.all_placed());
  CHECK(starts[0].port == 4321);  // its clients know that
  CHECK(starts[0].node == one);
  CHECK(starts[0].proxy != first);
  fleet.failed(starts[0].proxy, now);
  CHECK(started({one, two}).empty());  // and not again at once
  now += 10s;
  starts = started({one, two});
  REQUIRE(starts.size() == 1);
  for (int i = 0; i < 10; ++i) {  // its port is taken there
    fleet.failed(starts[0].proxy, now);
    now += 10s;
    starts = started({one, two});
    REQUIRE(starts.size() == 1);
  }
  fleet.failed(starts[0].proxy, now);
  now += 9s;
  CHECK(started({one, two}).empty());
  now += 1s;
  starts = started({one, two});
  REQUIRE(starts.size() == 1);

  // A node that drains has none; one that stays has one again.
  const ProxyId leaves = starts[0].proxy;
  CHECK(starts[0].port == 0);  // somebody else has the one that was known
  CHECK(!fleet.is_leaving(leaves));
  fleet.leaves(leaves, false);
  CHECK(fleet.is_leaving(leaves));
  fleet.failed(leaves, now);
  now += 1min;
  CHECK(started({one, two}).empty());
  CHECK(started({two}).empty());
  starts = started({one, two});
  REQUIRE(starts.size() == 1);  // it came back

  // The head names no node that drains: its proxy was killed then, within a second, with what it had
  // accepted.
  const ProxyId answers = starts[0].proxy;
  CHECK(started({two}).empty());
  CHECK(fleet.is_wanted(answers));
  CHECK(started({one, two}).empty());  // it stays after all
  fleet.failed(answers, now);
  now += 1min;
  CHECK(started({two}).empty());
  CHECK(started({one, two}).size() == 1);
}
