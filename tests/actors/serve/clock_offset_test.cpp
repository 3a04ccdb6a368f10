// How a replica's clock stands to a sender's: a deadline that comes early there is a 504 for nothing.
#include "actors/serve/clock_offset.hpp"

#include <catch2/catch.hpp>

#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::serve;
using namespace std::chrono_literals;

// Was: the middle between question and answer, once. Where the sender stood still for 4 s before it read the
// answer, each deadline came 2 s early, as long as the replica lived.
TEST_CASE("an answer that is read late makes no deadline early, and a quick one afterwards none late") {
  ClockOffset offset;
  CHECK_FALSE(offset.is_known());
  offset.heard(10s, 110s, 14s);
  CHECK(offset.is_known());
  CHECK(offset.offset(14s) == 100s + 4ms);  // the clocks may have gone apart meanwhile
  offset.heard(20s, 120s, 20s);
  CHECK(offset.offset(20s) == 100s);
  // A question that was two seconds on its way tells less.
  offset.heard(21s, 123s, 23s);
  CHECK(offset.offset(23s) == 100s + 3ms);
  CHECK(offset.offset(123s) == 100s + 103ms);
}

TEST_CASE("what was known of a clock is forgotten where it cannot be, as after a host was suspended") {
  ClockOffset offset;
  offset.heard(10s, 110s, 10s);
  offset.heard(20s, 60s, 20s);  // theirs stood still for a minute
  CHECK(offset.offset(20s) == 40s);
  offset.heard(30s, 170s, 31s);  // ours did, for longer
  CHECK(offset.offset(31s) == 140s + 1ms);
}

TEST_CASE("clocks that go apart make no deadline early, nor late where one answer was quick",
          "[simulation]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SeededRandom random(seed);
    const double rate = (random.uniform() - 0.5) * 0.0018;
    const auto theirs_at = [&](Instant now) {
      return now + 50s + Duration(static_cast<std::int64_t>(rate * static_cast<double>(now.count())));
    };
    const auto some = [&](Duration most) {
      return Duration(static_cast<std::int64_t>(random.uniform() * static_cast<double>(most.count())));
    };
    ClockOffset offset;
    Instant now = 1h, quick = 0s;
    for (int i = 0; i < 300; ++i) {
      const bool is_quick = random.below(4) == 0;
      const Duration longest = is_quick ? 1ms : 5s;
      const Instant asked = now += some(random.below(20) == 0 ? 600s : 1s);
      const Instant theirs = theirs_at(now += some(longest));
      now += some(longest);
      offset.heard(asked, theirs, now);
      if (is_quick) quick = now;
      for (const Duration later : {Duration{0}, some(600s)}) {
        const Duration late = offset.offset(now + later) - (theirs_at(now + later) - (now + later));
        INFO("seed " << seed << ", exchange " << i << ", late by " << to_seconds(late));
        REQUIRE(late >= -1us);
        REQUIRE((quick == 0s || late <= 2ms + (now + later - quick) / 500));
      }
    }
  }
}
