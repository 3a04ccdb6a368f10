// Looks at other processes, which may take as long as those hold the lock of their memory.
#include "runtime/node/look_thread.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>

using namespace troupe;
using namespace troupe::node;
using namespace std::chrono_literals;

// Was: the node's loop itself read /proc/PID/cmdline, and stood still with the process that it looked at.
TEST_CASE("A look that is stuck keeps the loop from nothing, and what it finds too late comes to nothing") {
  EventLoop loop;
  std::promise<void> stuck;
  std::shared_future<void> until = stuck.get_future().share();
  std::vector<std::string> heard;
  LookThread looks(loop);
  const auto say = [&](const char* text) { return [&, text] { heard.emplace_back(text); }; };
  looks.post(
      [until, say] {
        until.wait_for(60s);
        return LookThread::Then(say("too late"));
      },
      10ms,
      [&, say] {
        say("gave up")();
        stuck.set_value();
      });
  looks.post([say] { return LookThread::Then(say("second")); }, 60s, say("second gave up"));
  looks.post([&] { return LookThread::Then([&] { loop.stop(); }); }, 60s, [&] { loop.stop(); });
  loop.run();
  CHECK(heard == std::vector<std::string>{"gave up", "second"});
}

// Was: a node that ended looked itself for what programs had left behind, and ended never beside a stuck one.
TEST_CASE("A last look is waited for, but no longer than its owner has time") {
  EventLoop loop;
  LookThread looks(loop);
  const auto done = std::make_shared<std::atomic<int>>(0);
  CHECK(looks.finish([done] { ++*done; }, 60s));
  CHECK(*done == 1);
  const auto stuck = std::make_shared<std::promise<void>>();
  const auto until = stuck->get_future().share();
  CHECK_FALSE(looks.finish([until] { until.wait_for(120s); }, 10ms));
  CHECK_FALSE(looks.finish([done] { ++*done; }, 10ms));
  stuck->set_value();
}

TEST_CASE("Looks end with their owner, who does not wait for one that is stuck") {
  EventLoop loop;
  auto stuck = std::make_shared<std::promise<void>>();
  bool is_told = false;
  {
    LookThread looks(loop);
    looks.post(
        [until = stuck->get_future().share(), &is_told] {
          until.wait_for(120s);
          return LookThread::Then([&] { is_told = true; });
        },
        60s, [] {});
  }  // a second: the test's own deadline would find 120
  stuck->set_value();
  loop.after(50ms, [&] { loop.stop(); });
  loop.run();
  CHECK_FALSE(is_told);
}
