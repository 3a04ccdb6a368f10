// How a copy comes here, whatever order its parts end in, and what is looked for again: without a process.
#include "runtime/objects/copy_plan.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::objects;
using namespace std::chrono_literals;

namespace {

using Way = DirectOwners::Way;

ErrorInfo broke(const std::string& why) {
  return {ErrorCode::kUnavailable, "a part does not come", why, ""};
}

/// Carries a plan out: parts end in any order, whole or not.
struct Copied {
  Copied(std::uint64_t bytes, const ObjectLimits& by) : limits(by), plan(bytes, by) {}

  void take(CopyPlan::Actions actions) {
    for (const auto& action : actions) {
      REQUIRE_FALSE(ended);
      if (const auto* ask = std::get_if<CopyPlan::AskPart>(&action)) {
        CHECK(ask->part.offset == asked);  // in order, none twice, none left out
        CHECK(ask->part.bytes > 0);
        CHECK(ask->part.bytes <= limits.part_bytes);
        asked += ask->part.bytes;
        under_way.push_back(ask->part);
        most = std::max(most, under_way.size());
      } else if (const auto* end = std::get_if<CopyPlan::End>(&action)) {
        CHECK(under_way.empty());  // else a part would be written into memory that is given back
        ended = true;
        failed = end->failed;
      } else {
        FAIL("it goes over the links");
      }
    }
  }
  void end_one(Random& random, bool ok) {
    const std::size_t at = random.next() % under_way.size();
    under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(at));
    CopyPlan::Actions out;
    plan.part_ended(ok ? std::nullopt : std::optional(broke("part " + std::to_string(++failures))), out);
    take(std::move(out));
  }

  const ObjectLimits limits;
  CopyPlan plan;
  std::uint64_t asked = 0;
  std::vector<Part> under_way;
  std::size_t most = 0;
  int failures = 0;
  bool ended = false;
  std::optional<ErrorInfo> failed;
};

CopyPlan::Actions begun(CopyPlan& plan, Way way) {
  CopyPlan::Actions out;
  plan.begin({way, {"127.0.0.1:1", wire::Bytes(32)}, ""}, out);
  return out;
}

}  // namespace

TEST_CASE("A copy over the links asks for each byte once, a few parts at a time, and ends when all have") {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    ObjectLimits limits;
    limits.part_bytes = 1 + random.next() % 100;
    limits.parts_under_way = 1 + random.next() % 5;
    const std::uint64_t bytes = 1 + random.next() % 1000;
    const bool fails = random.next() % 2 == 0;
    Copied copy(bytes, limits);
    copy.take(begun(copy.plan, Way::kLinks));
    while (!copy.ended) {
      const std::uint64_t before = copy.asked;
      const bool had_failed = copy.failures > 0;
      copy.end_one(random, !fails || random.next() % 8 != 0);
      if (had_failed || copy.failures > 0) CHECK(copy.asked == before);  // nothing more of what is lost
    }
    const std::uint64_t parts = (bytes + limits.part_bytes - 1) / limits.part_bytes;
    CHECK(copy.most == std::min<std::uint64_t>(parts, limits.parts_under_way));
    CHECK(copy.failed.has_value() == (copy.failures > 0));
    if (copy.failed) CHECK(copy.failed->why == "part 1");
    if (!copy.failed) CHECK(copy.asked == bytes);
  }
}

TEST_CASE("A copy comes directly where its owner is reached so, and else over the links from its beginning") {
  CopyPlan plan(5 << 20, {});
  auto out = begun(plan, Way::kAsk);
  REQUIRE(out.size() == 1);
  CHECK(std::holds_alternative<CopyPlan::AskAddress>(out[0]));
  out.clear();
  plan.addressed({Way::kDirect, {"127.0.0.1:1", wire::Bytes(32)}, ""}, out);
  REQUIRE(out.size() == 1);
  CHECK(std::get<CopyPlan::FetchDirect>(out[0]).at.address == "127.0.0.1:1");
  SECTION("it is there") {
    out.clear();
    plan.direct_ended({}, out);
    REQUIRE(out.size() == 1);
    CHECK_FALSE(std::get<CopyPlan::End>(out[0]).failed);
  }
  SECTION("the connection broke") {
    out.clear();
    plan.direct_ended(broke("connection reset"), out);
    REQUIRE(out.size() == ObjectLimits().parts_under_way);
    CHECK(std::get<CopyPlan::AskPart>(out[0]).part == Part{0, ObjectLimits().part_bytes});
  }
}

TEST_CASE("An owner that has no address to give, or has just failed, gives its object over the links") {
  CopyPlan plan(100, {});
  CopyPlan::Actions out;
  plan.addressed({Way::kAsk, {}, ""}, out);  // its back-off was over just then: it is not asked a second time
  REQUIRE(out.size() == 1);
  CHECK(std::get<CopyPlan::AskPart>(out[0]).part == Part{0, 100});
}

TEST_CASE("Who cannot be reached is asked again until its node would be declared dead, and then no more") {
  const ObjectLimits limits;
  Duration all{};
  int times = 0;
  for (auto next = after_broken_link(times, limits); next.again; next = after_broken_link(++times, limits))
    all += next.after;
  CHECK(times == limits.broken_links);
  CHECK(all == 60s);
}

TEST_CASE("An object that has left its memory is looked for at once, then after longer and longer pauses") {
  const ObjectLimits limits;
  std::vector<Duration> pauses;
  for (int times = 0; after_gone_memory(times, limits).again; ++times)
    pauses.push_back(after_gone_memory(times, limits).after);
  REQUIRE(pauses.size() == static_cast<std::size_t>(limits.gone_memory));
  CHECK(std::vector<Duration>(pauses.begin(), pauses.begin() + 5) ==
        std::vector<Duration>{0s, 0s, 4ms, 8ms, 16ms});
  CHECK(std::is_sorted(pauses.begin(), pauses.end()));
  CHECK(pauses.back() == 250ms);
  CHECK(after_gone_memory(limits.gone_memory, limits).reason.find("was gone 20 times") != std::string::npos);
  CHECK(after_gone_memory(limits.gone_memory, limits, true).after == 250ms);  // who waits for room
  CHECK(after_gone_memory(limits.gone_memory, limits, true).again);
}
