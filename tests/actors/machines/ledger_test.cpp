#include "actors/train/driver/ledger.hpp"

#include <catch2/catch.hpp>

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

TEST_CASE("a ledger keeps figures alone, and of no step before those that it is told to keep") {
  Ledger ledger(1, 2);
  for (int step = 0; step < 6; ++step)
    REQUIRE(ledger.commit({step, {1, 1}, {{0, 1, 0}}, {{"loss", double(step), 1}}}).ok());
  CHECK(ledger.find(5)->slots.empty());
  CHECK(ledger.find(5)->figures.front().sum == 5);
  ledger.forget_before(4);
  CHECK(ledger.first_step() == 4);
  CHECK(ledger.committed() == 6);
  CHECK(ledger.find(3) == nullptr);
  CHECK(ledger.epoch(2).size() == 2);
  CHECK(ledger.rewind(5) == 1);
  CHECK(ledger.commit({5, {1, 2}, {{0, 1, 0}}}).ok());
}
