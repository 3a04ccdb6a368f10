// Times of --since.
#include <catch2/catch.hpp>
#include <ctime>

#include "scheduler/cli/commands.hpp"

using troupe::cli::parse_since;

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
  for (const char* wrong : {"", "m", "10", "10x", "-5m", "1.5h", "yesterday", "2026-13-01",
                            "2026-01-31 13:00 or so", "99999999999999999999s"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_since(wrong, kNow));
  }
}
