#include "actors/train/ledger.hpp"

#include <catch2/catch.hpp>

#include "actors/train/prefetcher.hpp"

using namespace troupe;
using namespace troupe::train;

TEST_CASE("the ledger takes each step once, in order, with every leaf once") {
  Ledger ledger(2, 3);
  const std::vector<SlotReport> both{{0, 10, 0.5F}, {1, 11, 0.5F}};
  CHECK(ledger.commit({0, {1, 1}, both}).ok());
  CHECK_FALSE(ledger.commit({0, {1, 1}, both}).ok());
  CHECK_FALSE(ledger.commit({2, {1, 1}, both}).ok());
  CHECK_FALSE(ledger.commit({1, {1, 1}, {{0, 10, 0}}}).ok());
  CHECK_FALSE(ledger.commit({1, {1, 1}, {{0, 10, 0}, {0, 10, 0}}}).ok());
  CHECK(ledger.commit({1, {1, 1}, both}).ok());
  CHECK(ledger.committed() == 2);
}

TEST_CASE("a rewound ledger takes the steps again, also from before its own start") {
  Ledger ledger(1, 2, 4);
  for (int step = 4; step < 7; ++step) REQUIRE(ledger.commit({step, {1, 1}, {{0, 1, 0}}}).ok());
  CHECK(ledger.epoch(2).size() == 2);
  CHECK(ledger.rewind(5) == 2);
  CHECK(ledger.commit({5, {1, 2}, {{0, 1, 0}}}).ok());
  CHECK(ledger.rewind(2) == 4);
  CHECK(ledger.committed() == 2);
  CHECK(ledger.find(4) == nullptr);
}

namespace {

std::vector<LoaderInfo> loaders(std::initializer_list<std::uint64_t> ids) {
  std::vector<LoaderInfo> list;
  for (const std::uint64_t id : ids) list.push_back({ActorId{id}, {}, ""});
  return list;
}

}  // namespace

TEST_CASE("batches are asked for in the order of their use, whatever the number of loaders") {
  for (const auto& list : {loaders({1}), loaders({1, 2}), loaders({1, 2, 3})}) {
    Prefetcher prefetcher(4, 3);
    prefetcher.set_loaders(list);
    prefetcher.restart({1, 3}, 5, 100);
    const auto requests = prefetcher.requests(Instant{0});
    REQUIRE(requests.size() == 3);
    CHECK((requests[0].step == 5 && requests[0].leaf == 1));
    CHECK((requests[1].step == 5 && requests[1].leaf == 2));
    CHECK((requests[2].step == 6 && requests[2].leaf == 1));
    for (const auto& r : requests) CHECK(r.loader == list[(r.step * 4 + r.leaf) % list.size()].actor);
    CHECK(prefetcher.requests(Instant{0}).empty());
  }
}

TEST_CASE("what a lost or silent loader owes is asked of another; the first answer counts") {
  Prefetcher prefetcher(2, 2, std::chrono::seconds(1));
  prefetcher.set_loaders(loaders({1, 2}));
  prefetcher.restart({0, 2}, 0, 10);
  REQUIRE(prefetcher.requests(Instant{0}).size() == 2);
  prefetcher.set_loaders(loaders({2}));
  const auto again = prefetcher.requests(Instant{0});
  REQUIRE(again.size() == 1);
  CHECK(again[0] == BatchRequest{0, 0, ActorId{2}});
  CHECK(prefetcher.arrived(0, 0));
  CHECK_FALSE(prefetcher.ready(0));
  CHECK(prefetcher.requests(std::chrono::seconds(2)) == std::vector{BatchRequest{0, 1, ActorId{2}}});
  CHECK(prefetcher.arrived(0, 1));
  CHECK_FALSE(prefetcher.arrived(0, 1));
  CHECK(prefetcher.ready(0));
  prefetcher.release(0);
  CHECK(prefetcher.requests(std::chrono::seconds(2)).front().step == 1);
  CHECK_FALSE(prefetcher.arrived(0, 0));
}

TEST_CASE("a new generation keeps the batches that still fit and gives the others back") {
  Prefetcher prefetcher(4, 4);
  prefetcher.set_loaders(loaders({1}));
  prefetcher.restart({0, 2}, 3, 10);
  prefetcher.requests(Instant{0});
  prefetcher.arrived(3, 0);
  prefetcher.arrived(3, 1);
  const auto dropped = prefetcher.restart({1, 4}, 3, 10);
  CHECK(dropped == std::vector<std::pair<std::int64_t, int>>{{3, 0}});
  CHECK(prefetcher.ready(3, 1));
}
