#include "actors/train/trainer/weight_copies.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

using namespace troupe;
using namespace troupe::train;

namespace {

/// A state of a few bytes.
class Copy final : public StateCopy {
 public:
  explicit Copy(int& alive) : alive_(alive) { ++alive_; }
  ~Copy() override { --alive_; }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  std::uint64_t size() const override { return 16; }
  void read(std::uint64_t /*offset*/, std::span<std::byte> into) override {
    std::memset(into.data(), 0, into.size());
  }

 private:
  int& alive_;
};

}  // namespace

// A program that gave up its wait, or was stopped while it read, left the copy behind: up to four of them for
// the rest of the run, each with every page that the trainer changed since.
TEST_CASE("a copy of weights that nobody reads is given up, one that is read is not") {
  int alive = 0;
  WeightCopies copies;
  const auto make = [&] { copies.make({}, [&] { return std::make_unique<Copy>(alive); }); };
  const auto read_on = copies.ask();
  make();
  const auto left = copies.ask();
  const auto left_too = copies.ask();  // of the same copy
  make();
  CHECK(alive == 2);
  const auto minute = [&] {
    for (int beat = 0; beat < 60; ++beat) copies.beat();
  };
  for (int minutes = 0; minutes < 9; ++minutes) {
    minute();
    CHECK_FALSE(copies.read(read_on.answer().number, 0).bytes.empty());
  }
  CHECK(alive == 2);
  for (int minutes = 0; minutes < 2; ++minutes) minute();
  CHECK(alive == 1);
  CHECK_THROWS_AS(copies.read(left.answer().number, 0), Unavailable);
  CHECK_THROWS_AS(copies.read(left_too.answer().number, 0), Unavailable);
  CHECK_FALSE(copies.read(read_on.answer().number, 0).bytes.empty());
  copies.drop(read_on.answer().number);
  CHECK(alive == 0);
}
