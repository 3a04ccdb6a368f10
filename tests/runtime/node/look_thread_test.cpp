// Looks at other processes, which may take as long as those hold the lock of their memory.
#include "runtime/node/look_thread.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <string>
#include <thread>
#include <vector>

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
      [until, say](StuckProcesses&) {
        until.wait_for(60s);
        return LookThread::Then(say("too late"));
      },
      10ms,
      [&, say] {
        say("gave up")();
        stuck.set_value();
      });
  looks.post([say](StuckProcesses&) { return LookThread::Then(say("second")); }, 60s, say("second gave up"));
  looks.post([&](StuckProcesses&) { return LookThread::Then([&] { loop.stop(); }); }, 60s,
             [&] { loop.stop(); });
  loop.run();
  CHECK(heard == std::vector<std::string>{"gave up", "second"});
}

// Was: a node that ended looked itself for what programs had left behind, and ended never beside a stuck one.
TEST_CASE("A last look is waited for, but no longer than its owner has time") {
  EventLoop loop;
  LookThread looks(loop);
  const auto done = std::make_shared<std::atomic<int>>(0);
  CHECK(looks.finish([done](StuckProcesses&) { ++*done; }, 60s));
  CHECK(*done == 1);
  const auto stuck = std::make_shared<std::promise<void>>();
  const auto until = stuck->get_future().share();
  CHECK_FALSE(looks.finish([until](StuckProcesses&) { until.wait_for(120s); }, 10ms));
  CHECK_FALSE(looks.finish([done](StuckProcesses&) { ++*done; }, 10ms));
  stuck->set_value();
}

TEST_CASE("Looks end with their owner, who does not wait for one that is stuck") {
  EventLoop loop;
  auto stuck = std::make_shared<std::promise<void>>();
  bool is_told = false;
  {
    LookThread looks(loop);
    looks.post(
        [until = stuck->get_future().share(), &is_told](StuckProcesses&) {
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

// Was: looks of other processes waited behind it for ever, and nobody was ended for memory on that node.
TEST_CASE("After a look that does not come back the next ones go on, and leave that process out") {
  EventLoop loop;
  const auto stuck = std::make_shared<std::promise<void>>();
  const auto begun = std::make_shared<std::promise<void>>();
  std::vector<std::string> heard;
  LookThread looks(loop);
  const auto say = [&](const std::string& text) { return [&, text] { heard.push_back(text); }; };
  looks.post(
      [until = stuck->get_future().share(), begun](StuckProcesses& all) {
        all.look_at(7, [&] { begun->set_value(), until.wait_for(120s); });
        return LookThread::Then([] {});
      },
      10ms, say("gave up"));
  begun->get_future().wait();  // one that waits for its turn until then is only dropped
  for (const pid_t process : {7, 8}) {
    looks.post(
        [say, process](StuckProcesses& all) {
          const bool looked = all.look_at(process, [] {});
          return LookThread::Then(say(std::to_string(process) + (looked ? " looked at" : " left out")));
        },
        60s, say("too late"));
  }
  looks.post([&](StuckProcesses&) { return LookThread::Then([&] { loop.stop(); }); }, 60s,
             [&] { loop.stop(); });
  loop.run();
  CHECK(heard == std::vector<std::string>{"gave up", "7 left out", "8 looked at"});
  stuck->set_value();
}

// Was: they queued up without a bound, and all came when the process let go.
TEST_CASE("Looks that wait are bounded, and one whose time is over is not done any more") {
  EventLoop loop;
  const auto stuck = std::make_shared<std::promise<void>>();
  const auto until = stuck->get_future().share();
  const auto begun = std::make_shared<std::promise<void>>();
  const auto done = std::make_shared<std::atomic<std::size_t>>(0);
  LookThread looks(loop);
  looks.post(
      [until, begun](StuckProcesses&) {
        begun->set_value();
        until.wait_for(120s);
        return LookThread::Then([] {});
      },
      600s, [] {});
  begun->get_future().wait();
  const auto count = [done](StuckProcesses&) {
    ++*done;
    return LookThread::Then([] {});
  };
  looks.post(count, 0ms, [&] { loop.pause(); });
  loop.run();
  for (std::size_t i = 0; i < LookThread::kMostPosted; ++i) looks.post(count, 600s, [] {});
  bool is_told = false;
  looks.post(count, 600s, [&] {
    is_told = true;
    loop.pause();
  });
  loop.after(60s, [&] { loop.stop(); });
  loop.run();
  CHECK(is_told);
  stuck->set_value();
  loop.every(1ms, [&] {
    if (*done == LookThread::kMostPosted) loop.stop();
  });
  loop.run();
  CHECK(*done == LookThread::kMostPosted);
}

TEST_CASE("Where looks wait for many processes none is looked at any more") {
  StuckProcesses all;
  std::promise<void> stuck;
  const auto until = stuck.get_future().share();
  std::vector<std::thread> threads;
  std::atomic<std::size_t> waits{0};
  for (std::size_t i = 0; i < StuckProcesses::kMost; ++i) {
    threads.emplace_back([&, i] {
      all.look_at(static_cast<pid_t>(i + 1), [&] {
        ++waits;
        until.wait();
      });
    });
  }
  while (waits < StuckProcesses::kMost) std::this_thread::yield();
  CHECK_FALSE(all.look_at(1000, [] {}));
  stuck.set_value();
  for (auto& thread : threads) thread.join();
  CHECK(all.look_at(1000, [] {}));
}
