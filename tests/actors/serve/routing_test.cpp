// Which replica gets a batch, by what its batches were measured to take; and how that compares, in simulated
// time, to Ray Serve's choice: two replicas at random, and of these the one with fewer requests
// (python/ray/serve/_private/request_router/pow_2_router.py). Figures: test_deployment_machine "[.figures]".
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "actors/serve/request_router.hpp"
#include "runtime/core/random.hpp"
#include "tests/actors/serve/due_queue.hpp"

using namespace troupe;
using namespace troupe::serve;
using namespace std::chrono_literals;

namespace {

struct Load {
  std::string name;
  std::vector<double> slowness;  ///< of each replica; 1: as fast as the fastest
  double requests_a_second = 0;
  Duration stall{0};  ///< the first replica stands still so long, every 5 s
};

constexpr std::int64_t kBatch = 16;
constexpr Duration kLong = 60s;

/// Replicas in simulated time: a batch takes 2 ms and 0.25 ms a row, times the replica's slowness and up to a
/// fifth more.
class RoutingWorld {
 public:
  RoutingWorld(const Load& load, std::uint64_t seed) : load_(load), random_(seed) {
    replicas_.resize(load.slowness.size());
  }
  virtual ~RoutingWorld() = default;

  /// Milliseconds, of all requests but those of the first five seconds.
  std::vector<double> run() {
    due_.add(now_, [this] { arrive(); });
    while (due_.next() < Instant::max()) {
      const Instant wake = wake_at();
      if (wake < due_.next()) {
        now_ = std::max(now_, wake);
        tick();
      } else {
        now_ = std::max(now_, due_.next());
        due_.run_next();
      }
    }
    std::sort(took_.begin(), took_.end());
    return took_;
  }

 protected:
  virtual void arrived(RequestId id) = 0;
  virtual void computed(std::size_t replica, std::vector<RequestId> requests, Duration time) = 0;
  virtual Instant wake_at() { return Instant::max(); }
  virtual void tick() {}

  void compute(std::size_t replica, std::vector<RequestId> requests) {
    const double rows = static_cast<double>(requests.size());
    const double seconds = (0.002 + 0.00025 * rows) * load_.slowness[replica] * (1 + 0.2 * random_.uniform());
    Duration time(static_cast<std::int64_t>(seconds * 1e9));
    const Instant in_period = now_ - (now_ / 5s) * 5s;
    if (replica == 0 && in_period < load_.stall) time += load_.stall - in_period;
    due_.add(now_ + time, [this, replica, requests = std::move(requests), time]() mutable {
      computed(replica, std::move(requests), time);
    });
  }
  void answer(RequestId id) {
    const auto request = waiting_.extract(id);
    if (request.empty()) FAIL("a request was answered twice");  // millions: no assertion each
    if (request.mapped() > 5s) took_.push_back(to_seconds(now_ - request.mapped()) * 1e3);
  }

  const Load load_;
  SeededRandom random_;
  DueQueue due_;
  Instant now_{};
  struct Replica {
    std::deque<RequestId> queue;
    bool computes = false;
    std::size_t ongoing = 0;
  };
  std::vector<Replica> replicas_;

 private:
  void arrive() {
    if (now_ > 60s) return;
    const RequestId id = ++last_;
    waiting_[id] = now_;
    arrived(id);
    const double next = -std::log(1 - random_.uniform()) / load_.requests_a_second;
    due_.add(now_ + Duration(static_cast<std::int64_t>(next * 1e9)), [this] { arrive(); });
  }

  RequestId last_ = 0;
  std::map<RequestId, Instant> waiting_;
  std::vector<double> took_;
};

/// The router, with one proxy: two batches a replica.
class Measured final : public RoutingWorld {
 public:
  Measured(const Load& load, std::uint64_t seed)
      : RoutingWorld(load, seed), router_(config_, times_, out_), batches_(load.slowness.size()) {
    router_.set_now(now_);
    for (std::size_t i = 0; i < load.slowness.size(); ++i) router_.open(i + 1, 1);
  }

 private:
  void arrived(RequestId id) override {
    router_.set_now(now_);
    router_.arrive({id, 1, now_ + kLong});
    carry_out();
  }
  Instant wake_at() override { return router_.next_wake(); }
  void tick() override {
    router_.set_now(now_);
    router_.expire();
    router_.dispatch();
    carry_out();
  }
  void computed(std::size_t replica, std::vector<RequestId> requests, Duration time) override {
    auto& queue = batches_[replica];
    BatchDone done{replica + 1, queue.front().batch, {}, time};
    done.verdicts.resize(requests.size());
    queue.pop_front();
    if (!queue.empty()) compute(replica, queue.front().requests);
    router_.set_now(now_);
    const std::int64_t rows = router_.done(done);
    times_.computed(rows, time);
    router_.dispatch();
    carry_out();
  }
  void carry_out() {
    for (const Action& action : std::exchange(out_, {})) {
      if (const auto* sent = std::get_if<SendBatch>(&action)) {
        auto& queue = batches_[sent->replica - 1];
        queue.push_back(*sent);
        if (queue.size() == 1) compute(sent->replica - 1, sent->requests);
      } else {
        answer(std::get<Deliver>(action).request);
      }
    }
  }

  const DeploymentConfig config_{.max_batch = kBatch, .max_queue = 1'000'000};
  Autoscaler times_{config_};
  std::vector<Action> out_;
  RequestRouter router_;
  std::vector<std::deque<SendBatch>> batches_;
};

/// Ray Serve's: a replica batches what it has (batch_wait_timeout_s = 0), and may have two batches
/// (max_ongoing_requests). Better than the real one: lengths of queues are always known, and a request that
/// finds two full ones is tried again as soon as one is answered.
class PowerOfTwo final : public RoutingWorld {
 public:
  using RoutingWorld::RoutingWorld;

 private:
  void arrived(RequestId id) override {
    waits_.push_back(id);
    route();
  }
  void computed(std::size_t replica, std::vector<RequestId> requests, Duration) override {
    for (const RequestId id : requests) answer(id);
    replicas_[replica].ongoing -= requests.size();
    replicas_[replica].computes = false;
    batch(replica);
    route();
  }
  void route() {
    while (!waits_.empty()) {
      const std::size_t a = random_.below(replicas_.size());
      std::size_t b = random_.below(replicas_.size() - 1);
      if (b >= a) ++b;
      const std::size_t to = replicas_[a].ongoing <= replicas_[b].ongoing ? a : b;
      if (replicas_[to].ongoing >= 2 * kBatch) return;
      ++replicas_[to].ongoing;
      replicas_[to].queue.push_back(waits_.front());
      waits_.pop_front();
      batch(to);
    }
  }
  void batch(std::size_t replica) {
    auto& [queue, computes, ongoing] = replicas_[replica];
    if (computes || queue.empty()) return;
    computes = true;
    const auto end = queue.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(queue.size(), kBatch));
    std::vector<RequestId> requests(queue.begin(), end);
    queue.erase(queue.begin(), end);
    compute(replica, std::move(requests));
  }

  std::deque<RequestId> waits_;
};

double quantile(const std::vector<double>& sorted, double share) {
  return sorted.at(static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1)));
}
double mean(const std::vector<double>& all) {
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

/// A replica of full batches answers 2,666 requests a second: 70 % of what they can, and 20 %.
std::vector<Load> loads() {
  std::vector<Load> all;
  const std::vector<double> equal(8, 1);
  std::vector<double> one_slow = equal, half_slow = equal;
  one_slow[0] = 10;
  for (int i = 0; i < 4; ++i) half_slow[static_cast<std::size_t>(i)] = 3;
  for (const double busy : {0.2, 0.7}) {
    const std::string percent = busy < 0.5 ? ", 20 %" : ", 70 %";
    const auto rate = [&](const std::vector<double>& slowness) {
      double replicas = 0;
      for (const double one : slowness) replicas += 1 / one;
      return busy * replicas * 2666 / 1.1;
    };
    all.push_back({"8 equal" + percent, equal, rate(equal)});
    all.push_back({"one of 8 takes 10 x" + percent, one_slow, rate(one_slow)});
    all.push_back({"4 of 8 take 3 x" + percent, half_slow, rate(half_slow)});
    all.push_back({"one of 8 stalls 0.5 s in 5 s" + percent, equal, rate(equal), 500ms});
  }
  return all;
}

/// A router without a world: replicas 1 and 2 are there, and batches of a row took 10 ms and 100 ms.
struct TwoReplicas {
  TwoReplicas() {
    router.set_now(now);
    router.open(1, 1);
    router.open(2, 1);
    for (int i = 0; i < 40; ++i) {
      const auto to = send();
      done(to, to == 1 ? 10ms : 100ms);
    }
  }
  /// A request, and who has it; 0: it waits.
  ReplicaId send() {
    router.arrive({++last, 1, now + 60s});
    return sent();
  }
  ReplicaId sent() {
    for (const Action& action : std::exchange(out, {})) {
      if (const auto* batch = std::get_if<SendBatch>(&action)) {
        batches[batch->replica] = batch->batch;
        return batch->replica;
      }
    }
    return 0;
  }
  void pass(Duration time) {
    now += time;
    router.set_now(now);
    router.dispatch();
  }
  void done(ReplicaId replica, Duration took) {
    now += took;
    router.set_now(now);
    router.done({replica, batches.at(replica), {Verdict{}}, took});
    times.computed(1, took);
    out.clear();
  }

  Instant now{1h};
  const DeploymentConfig config{.max_batch = 8, .max_queue = 1000};
  Autoscaler times{config};
  std::vector<Action> out;
  RequestRouter router{config, times, out};
  std::map<ReplicaId, BatchId> batches;
  RequestId last = 0;
};

}  // namespace

TEST_CASE("the faster of two idle replicas gets a request, and one waits for it rather than go to the slow") {
  TwoReplicas world;
  CHECK(world.send() == 1);
  CHECK(world.send() == 0);  // in some 10 ms the fast one is free; the slow one would take 100
  CHECK(world.router.next_wake() > world.now);
  CHECK(world.router.next_wake() < world.now + 200ms);
  world.now += 10ms;
  world.router.set_now(world.now);
  world.router.done({1, world.batches.at(1), {Verdict{}}, 10ms});
  world.router.dispatch();
  CHECK(world.sent() == 1);

  // It hangs: the slow one has what waits when that is the better choice, at the moment that was asked for.
  CHECK(world.send() == 0);
  const Instant wake = world.router.next_wake();
  world.pass(wake - world.now - 5ms);
  CHECK(world.sent() == 0);
  world.pass(5ms);
  CHECK(world.sent() == 2);
}

TEST_CASE("a pace is forgotten: a replica that was slow is tried again, and if it is fast, keeps its share") {
  TwoReplicas world;
  world.pass(60s);
  int second = 0;
  for (int i = 0; i < 20; ++i) {
    const auto to = world.send();
    REQUIRE(to != 0);
    second += to == 2;
    world.done(to, 10ms);
  }
  CHECK(second >= 9);
}

TEST_CASE("replicas of the same pace take turns") {
  TwoReplicas world;
  world.router.lose(2, "it is gone");
  world.router.open(3, 1);
  std::map<ReplicaId, int> had;
  for (int i = 0; i < 100; ++i) {
    const auto to = world.send();
    ++had[to];
    world.done(to, i % 2 == 0 ? 10ms : 11ms);
  }
  CHECK(had[1] == 50);
  CHECK(had[3] == 50);
}

TEST_CASE("measured batch times beat the power of two choices where replicas differ, and lose nowhere",
          "[simulation]") {
  for (const Load& load : loads()) {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      const auto ours = Measured(load, seed).run(), theirs = PowerOfTwo(load, seed).run();
      INFO(load.name << ", seed " << seed << ": p99 " << quantile(ours, 0.99) << " and "
                     << quantile(theirs, 0.99) << " ms, mean " << mean(ours) << " and " << mean(theirs));
      CHECK(ours.size() > 10'000);
      const auto [least, most] = std::minmax_element(load.slowness.begin(), load.slowness.end());
      CHECK(quantile(ours, 0.99) < quantile(theirs, 0.99) * (*least == *most ? 1.02 : 0.7));
      CHECK(mean(ours) < mean(theirs));
    }
  }
}

TEST_CASE("figures of docs/serving.md", "[.figures]") {
  std::printf("%-40s %8s %8s %8s %8s\n", "ms", "p50", "p50 P2C", "p99", "p99 P2C");
  for (const Load& load : loads()) {
    const auto ours = Measured(load, 1).run(), theirs = PowerOfTwo(load, 1).run();
    std::printf("%-40s %8.1f %8.1f %8.1f %8.1f\n", load.name.c_str(), quantile(ours, 0.5),
                quantile(theirs, 0.5), quantile(ours, 0.99), quantile(theirs, 0.99));
  }
}
