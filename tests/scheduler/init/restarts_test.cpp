// When a process that died is started again: pure, so time is a number here.
#include "scheduler/init/restarts.hpp"

#include <catch2/catch.hpp>

#include "runtime/link/key_refused.hpp"

using namespace troupe;
using namespace std::chrono_literals;

TEST_CASE("who was up for long is started again at once, however often", "[restarts]") {
  Restarts restarts;
  Instant now{};
  for (int i = 0; i < 1000; ++i) {
    restarts.up(now);
    now += 11s;
    CHECK(restarts.died(now, "killed") == Duration(0));
  }
}

TEST_CASE("who dies soon is started again ever more slowly, and after many times not at all", "[restarts]") {
  Restarts restarts({.first = 50ms, .longest = 200ms, .most_starts = 6, .most_deaths = 7});
  const std::vector<Duration> waits{0ms, 50ms, 100ms, 200ms, 200ms, 200ms};
  for (const Duration wait : waits) {
    restarts.up(Instant{});
    CHECK(restarts.died(Instant{} + 1s, "killed") == wait);
  }
  restarts.up(Instant{});
  CHECK_FALSE(restarts.died(Instant{} + 1s, "exit code 3"));
  CHECK(restarts.gave_up("the head").what == "the head does not stay up");
  CHECK(restarts.gave_up("the head").why.find("7 times in a row; the last time: exit code 3") == 0);
}

TEST_CASE("a start that fails is a death, and a few in a row are the end", "[restarts]") {
  Restarts restarts({.most_starts = 3});
  CHECK(restarts.died(Instant{}, "killed") == Duration(0));
  CHECK(restarts.died(Instant{}, "killed") == 50ms);
  restarts.up(Instant{});  // the third one works: the count begins anew
  CHECK(restarts.died(Instant{} + 11s, "killed") == Duration(0));
  CHECK(restarts.died(Instant{} + 12s, "killed") == 50ms);
  CHECK(restarts.died(Instant{} + 13s, "killed") == 100ms);
  CHECK_FALSE(restarts.died(Instant{} + 14s, "port in use"));
  CHECK(restarts.gave_up("node 1").what == "node 1 does not come up");
  CHECK(restarts.gave_up("node 1").code == ErrorCode::kUnavailable);
}

TEST_CASE(
    "who is blocked is tried for as long as it takes, ever more slowly, and it is no failure of its own",
    "[restarts]") {
  Restarts restarts({.first = 50ms, .longest_blocked = 200ms, .most_starts = 2});
  restarts.up(Instant{});
  const std::vector<Duration> waits{50ms, 100ms, 200ms, 200ms, 200ms};
  for (const Duration wait : waits) CHECK(restarts.blocked("the disk is full") == wait);
  CHECK_FALSE(restarts.is_up());
  CHECK(restarts.died(Instant{}, "killed") == Duration(0));  // its first
  restarts.up(Instant{});
  CHECK(restarts.blocked("the disk is full") == 50ms);
}

TEST_CASE("who came up once waits for what may come back; how far it came says what that is", "[restarts]") {
  using Failed = Restarts::Failed;
  const auto blocks = [](ErrorCode code, Failed at) {
    Restarts restarts({.first = 50ms, .most_starts = 2});
    restarts.up(Instant{});
    for (int failure = 0; failure < 3; ++failure) {
      if (!restarts.failed(Instant{} + 1s, "node 1", {code, "x", "", ""}, at).wait) return false;
    }
    return true;
  };
  CHECK(blocks(ErrorCode::kUnavailable, Failed::kStart));  // the head that it joins
  CHECK(blocks(ErrorCode::kTimeout, Failed::kStart));
  CHECK_FALSE(blocks(ErrorCode::kBadConfig, Failed::kStart));
  // Was: a node whose key was removed was started six times more, and a token that came meanwhile let it in.
  Restarts removed;
  removed.up(Instant{});
  const auto next =
      removed.failed(Instant{} + 1h, "node 1", {ErrorCode::kRefused, "x", kKeyRefused, ""}, Failed::kStart);
  CHECK_FALSE(next.wait);
  CHECK(next.why_not.why == kKeyRefused);
  // Was: two handshakes that a head's death broke off were the end, too.
  CHECK(blocks(ErrorCode::kRefused, Failed::kStart));
  CHECK(blocks(ErrorCode::kTimeout, Failed::kJoin));  // the head's store
  CHECK_FALSE(blocks(ErrorCode::kUnavailable, Failed::kJoin));
  CHECK_FALSE(blocks(ErrorCode::kTimeout, Failed::kReady));
  CHECK_FALSE(blocks(ErrorCode::kIo, Failed::kRunning));
  for (const Failed at : {Failed::kStart, Failed::kJoin, Failed::kReady})
    CHECK(blocks(ErrorCode::kIo, at));  // a full disk
}

TEST_CASE("who never came up is not started again where the same start would fail again", "[restarts]") {
  const ErrorInfo port{ErrorCode::kBadConfig, "cannot listen", "the port is in use", ""};
  const ErrorInfo away{ErrorCode::kUnavailable, "no head", "", ""};
  Restarts restarts({.most_starts = 2});
  CHECK(restarts.failed(Instant{}, "node 1", away, Restarts::Failed::kStart).wait == Duration(0));
  const auto gave_up = restarts.failed(Instant{}, "node 1", away, Restarts::Failed::kStart);
  CHECK_FALSE(gave_up.wait);  // never up, so even this ends
  CHECK(gave_up.why_not.what == "node 1 does not come up");
  CHECK_FALSE(gave_up.is_permanent);
  // Was: "call troupe::init first in main()", to who joined a cluster at an address where nobody listens.
  CHECK_THAT(gave_up.why_not.todo, Catch::StartsWith("look at the lines above"));
  Restarts silent({.most_starts = 1});
  CHECK_THAT(silent.failed(Instant{}, "node 1", away, Restarts::Failed::kRunning).why_not.todo,
             Catch::StartsWith("call troupe::init first in main()"));
  const auto permanent = Restarts().failed(Instant{}, "node 1", port, Restarts::Failed::kReady);
  CHECK_FALSE(permanent.wait);
  CHECK(permanent.is_permanent);
  CHECK(permanent.why_not.why == "the port is in use");
  restarts.up(Instant{});
  CHECK(restarts.failed(Instant{} + 11s, "node 1", port, Restarts::Failed::kReady).wait == Duration(0));
}

TEST_CASE("who reports why it does not come up is not told to call init", "[restarts]") {
  // Was: with the loopback interface down, the advice was to call troupe::init first, which was done.
  const ErrorInfo away{ErrorCode::kUnavailable, "no head", "nobody answers there", ""};
  Restarts reports({.most_starts = 1}), dies({.most_starts = 1});
  const auto reported = reports.failed(Instant{}, "node 0", away, Restarts::Failed::kReady);
  CHECK(reported.why_not.why.find("nobody answers there") != std::string::npos);
  CHECK(reported.why_not.todo.find("troupe::init") == std::string::npos);
  const auto died = dies.failed(Instant{}, "node 0", away, Restarts::Failed::kRunning);
  CHECK(died.why_not.todo.find("call troupe::init first in main()") == 0);
}
