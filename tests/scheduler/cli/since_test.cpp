// Times of --since.
#include <catch2/catch.hpp>
#include <ctime>

#include "scheduler/cli/commands.hpp"

using troupe::cli::parse_since;
using troupe::cli::time_of_line;

TEST_CASE("since so long ago, or since a time of this machine's clock") {
  constexpr std::int64_t kNow = 1'800'000'000'000;
  CHECK(parse_since("90s", kNow) == kNow - 90'000);
  CHECK(parse_since("10m", kNow) == kNow - 600'000);
  CHECK(parse_since("2h", kNow) == kNow - 7'200'000);
  CHECK(parse_since("3d", kNow) == kNow - 259'200'000);
  std::tm parts{};
  parts.tm_year = 126, parts.tm_mday = 31, parts.tm_hour = 13, parts.tm_isdst = -1;
  const std::int64_t one = std::int64_t{std::mktime(&parts)} * 1000;
  CHECK(parse_since("2026-01-31 13:00", kNow) == one);
  CHECK(parse_since("2026-01-31T13:00:05", kNow) == one + 5000);
  CHECK(parse_since("2026-01-31", kNow) == one - 13 * 3'600'000);
  // Was: a time of today was no time.
  const std::time_t now = kNow / 1000;
  std::tm today = *::localtime(&now);
  today.tm_hour = 10, today.tm_min = 49, today.tm_sec = 0, today.tm_isdst = -1;
  CHECK(parse_since("10:49", kNow) == std::int64_t{std::mktime(&today)} * 1000);
  CHECK(parse_since("10:49:05", kNow) == std::int64_t{std::mktime(&today)} * 1000 + 5000);
  for (const char* wrong : {"", "m", "25:00", "10:", ":10", "10:49x", "10", "10x", "-5m", "1.5h", "yesterday",
                            "2026-13-01", "2026-01-31 13:00 or so", "99999999999999999999s"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_since(wrong, kNow));
  }
}

// Was: local times were compared as texts, so that a node of another time zone showed too much, or nothing.
TEST_CASE("lines of a log say when they were written, in any time zone") {
  constexpr std::int64_t kNoon = 1'769'860'800'000;  // 2026-01-31 12:00 UTC
  CHECK(time_of_line("2026-01-31 12:00:00.250+0000 troupe[head]: x\n") == kNoon + 250);
  CHECK(time_of_line("2026-01-31 13:00:00.250+0100 troupe[head]: x\n") == kNoon + 250);
  CHECK(time_of_line("2026-01-31 08:30:00-0330 troupe\n") == kNoon);
  CHECK(time_of_line("2026-02-01 01:00:00+1300") == kNoon);
  std::tm parts{};
  parts.tm_year = 126, parts.tm_mday = 31, parts.tm_hour = 13, parts.tm_isdst = -1;
  CHECK(time_of_line("2026-01-31 13:00:00.007 troupe: of before zones were written") ==
        std::int64_t{std::mktime(&parts)} * 1000 + 7);
  for (const char* none : {"", "troupe: x", "  2026", "2026-01-31", "x 2026-01-31 12:00:00"}) {
    CAPTURE(none);
    CHECK_FALSE(time_of_line(none));
  }
}
