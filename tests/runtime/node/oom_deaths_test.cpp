// Deaths that were the kernel's doing: told from other SIGKILLs by the counter of the node's control group.
#include "runtime/node/oom_deaths.hpp"

#include <catch2/catch.hpp>
#include <csignal>

#include "runtime/core/ending.hpp"

using namespace troupe;
using namespace troupe::node;
using namespace std::chrono_literals;

namespace {

struct Deaths {
  std::uint64_t kills = 7;  ///< that the counter tells of
  OomDeaths deaths{[this] { return kills; }};

  template <class End>
  std::string how(End end) {
    NodeEvent event = std::move(end);
    deaths.explain(event);
    return std::get<End>(event).how;
  }
  bool for_memory(const std::string& id, int signal = SIGKILL) {
    NodeEvent event = ProgramEnded{id, 1, 0, signal};
    deaths.explain(event);
    return std::get<ProgramEnded>(event).for_memory;
  }
};

const std::string kKilled = ended_by_signal(SIGKILL);
const std::string kForMemory = "killed by signal 9 (SIGKILL) by the kernel, since memory ran out";

}  // namespace

// Was: "killed by signal 9 (SIGKILL)", whoever had sent it.
TEST_CASE("a kill that the kernel counted explains one SIGKILL") {
  Deaths f;
  CHECK(f.how(ProcessEnded{{1}, kKilled}) == kKilled);
  ++f.kills;
  CHECK(f.how(ProcessEnded{{2}, ended_with_code(1)}) == ended_with_code(1));
  CHECK(f.how(ProcessEnding{{3}, kKilled}) == kForMemory);
  CHECK(f.how(ProcessEnded{{4}, kKilled}) == kKilled);
  ++f.kills;
  CHECK(f.how(ProcessEnded{{3}, kKilled}) == kKilled);  // it was told, and the machine keeps what came first
  CHECK_FALSE(f.for_memory("a", SIGTERM));
  CHECK(f.for_memory("b"));
  CHECK_FALSE(f.for_memory("c"));
  CHECK(ended_by_itself(kForMemory) == ended_by_itself(kKilled));
}

TEST_CASE("what the node itself ends, and what dies long after a kill, was not the kernel's doing") {
  Deaths f;
  ++f.kills;
  f.deaths.node_ends(ProcessId{1});
  f.deaths.node_ends(std::string("a"));
  CHECK(f.how(ProcessEnding{{1}, kKilled}) == kKilled);
  CHECK(f.how(ProcessEnded{{1}, kKilled}) == kKilled);
  CHECK_FALSE(f.for_memory("a"));
  const Instant now{1h};
  f.deaths.tick(now);
  f.deaths.tick(now + 5s);
  CHECK(f.for_memory("a"));  // its next attempt
  ++f.kills;
  f.deaths.tick(now + 10s);
  f.deaths.tick(now + 20s);
  CHECK(f.how(ProcessEnded{{2}, kKilled}) == kKilled);
}
