/// What a driver keeps of its metrics: pure functions and their text.
#include "actors/train/driver/history.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "actors/train/api/run_losses.hpp"

using namespace troupe::train;

TEST_CASE("the best value follows the mode; too small a gain and what is no number are none") {
  Best best;
  best = observe(best, "test/loss", Mode::kAuto, 0, 1, 0.5);
  CHECK(best == Best{1, 0.5, 0});
  best = observe(best, "test/loss", Mode::kAuto, 0, 2, 0.5);
  CHECK(best == Best{1, 0.5, 1});
  best = observe(best, "test/loss", Mode::kAuto, 0.2, 3, 0.4);
  CHECK(best == Best{1, 0.5, 2});
  best = observe(best, "test/loss", Mode::kAuto, 0, 4, std::numeric_limits<double>::quiet_NaN());
  CHECK(best == Best{1, 0.5, 3});
  best = observe(best, "test/loss", Mode::kAuto, 0, 5, 0.3);
  CHECK(best == Best{5, 0.3, 0});
  CHECK(observe({1, 0.5, 0}, "test/accuracy", Mode::kAuto, 0, 2, 0.6) == Best{2, 0.6, 0});
  CHECK(observe({1, 0.5, 0}, "test/accuracy", Mode::kMin, 0, 2, 0.6) == Best{1, 0.5, 1});
  CHECK(observe({}, "test/loss", Mode::kMin, 0, 1, std::nan("")) == Best{0, 0, 1});
}

TEST_CASE("a history goes round as text, to the last bit; other text is none") {
  const History history{{{"test/loss", 0.1 + 0.2}}, 12, {3, 1e-300, 1}, {2, 0.99, 0}, {{"loss", 1.0 / 3, 7}}};
  CHECK(decode_history(encode_history(history)) == history);
  CHECK_FALSE(decode_history("7"));
  CHECK_FALSE(decode_history("zz"));
  CHECK_FALSE(decode_history("00ff00"));
}

TEST_CASE("a run that loses its driver goes on twice without progress, and no third time") {
  RunLosses losses(3);
  losses.reached(10);
  CHECK(losses.goes_on());
  losses.reached(10);  // the same steps again are no progress
  CHECK(losses.goes_on());
  losses.reached(11);
  CHECK(losses.goes_on());
  CHECK(losses.goes_on());
  CHECK_FALSE(losses.goes_on());
}
