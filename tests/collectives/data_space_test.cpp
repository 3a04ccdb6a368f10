/// Runs of a rank's data: what is taken, given back and joined again.

#include "collectives/native/data_space.hpp"

#include <catch2/catch.hpp>
#include <map>

#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::collectives;

TEST_CASE("a run that is given back joins its neighbours, and is known to have been used") {
  DataSpace space(400);
  const auto a = space.take(100), b = space.take(100), c = space.take(100);
  REQUIRE((a && b && c));
  CHECK((a->offset == 0 && b->offset == 100 && c->offset == 200));
  CHECK_FALSE(c->was_used);
  CHECK_FALSE(space.take(101));
  CHECK(space.bytes_at(0) == 100);
  space.give(0);
  CHECK((space.left() == 200 && space.largest() == 100));
  CHECK_FALSE(space.take(150));
  space.give(100);
  CHECK((space.left() == 300 && space.largest() == 200));
  CHECK(space.bytes_at(100) == 0);
  CHECK(space.bytes_at(250) == 0);
  const auto both = space.take(150);
  REQUIRE(both);
  CHECK((both->offset == 0 && both->was_used));
  space.give(200);
  CHECK((space.left() == 250 && space.largest() == 250));
  CHECK_FALSE(DataSpace(0).take(1));
}

TEST_CASE("runs never overlap, and all come back, over random orders") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    DataSpace space(10'000);
    std::map<std::size_t, std::size_t> taken;
    for (int i = 0; i < 500; ++i) {
      if (!taken.empty() && random.below(2) == 0) {
        const auto at = std::next(taken.begin(), static_cast<std::ptrdiff_t>(random.below(taken.size())));
        CHECK(space.bytes_at(at->first) == at->second);
        space.give(at->first);
        taken.erase(at);
      } else if (const std::size_t bytes = 1 + random.below(900); const auto run = space.take(bytes)) {
        const auto next = taken.lower_bound(run->offset);
        REQUIRE((next == taken.end() || run->offset + bytes <= next->first));
        if (next != taken.begin()) REQUIRE(std::prev(next)->first + std::prev(next)->second <= run->offset);
        taken[run->offset] = bytes;
      } else {
        CHECK(space.largest() < bytes);
      }
    }
    for (const auto& [offset, bytes] : taken) space.give(offset);
    CHECK(space.largest() == 10'000);
  }
}
