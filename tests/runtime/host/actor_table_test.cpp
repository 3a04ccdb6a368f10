// The actors of a process that ends.
#include "runtime/host/actor_table.hpp"

#include <catch2/catch.hpp>

#include "runtime/client/session.hpp"
#include "runtime/host/actor_threads.hpp"
#include "tests/runtime/client/local_gate.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct Idle {
  explicit Idle(int) {}
};

struct TableHome : ActorHome {
  testing::LocalGate local;
  ProcessGate& gate() override { return local; }
  bool is_congested(ProcessAddress, std::size_t) override { return false; }
  void when_drained(ProcessAddress, std::function<void()>) override {}
  void carried_out(ProcessAddress, std::size_t) override {}
};

}  // namespace

// Was: one that its node told to start while its process ended stayed for ever, and the process with it; one
// that came before answers were dropped was constructed, and waited for.
TEST_CASE("an actor that starts after its process has ended all others ends, too") {
  using Entry = detail::ConstructorEntry<Idle, int>;
  (void)&Entry::registered;
  ActorThreads threads(true);
  TableHome home;
  ActorTable table(threads.system(), home, true);
  GENERATE(true, false) ? table.close("the process ends") : table.stop_all("the process ends");
  std::optional<ErrorInfo> refused;
  Promise<std::string> ended;
  const ActorAddress at{{1}, {2}, {3}};
  table.start(
      {at, Entry::kId, wire::encode(1), true}, [&](const Result<void>& ready) { refused = ready.error(); },
      [ended](const ActorAddress&, const std::string& why) mutable { ended.set(why); }, nullptr);
  CHECK_NOTHROW(ended.future().get(10s));
  CHECK(table.why_ended(at.actor) == "the process ends");
  REQUIRE(refused);
  CHECK(refused->why == "the process ends");
  table.stop(at.actor, "the test ends");
  threads.end();
}
