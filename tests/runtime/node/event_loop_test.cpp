/// The loop of a node: descriptors whose numbers are used again, and work that others post.

#include "runtime/node/event_loop.hpp"

#include <sys/eventfd.h>

#include <catch2/catch.hpp>
#include <thread>

using namespace troupe;
using namespace std::chrono_literals;

TEST_CASE("A descriptor with a number that was used before gets no event of its forerunner") {
  // Story: within one batch of epoll, a callback closed another descriptor, which was readable, and opened a
  // new one, which got its number: the new one's callback was told of data that it does not have.
  EventLoop loop;
  UniqueFd fds[2] = {UniqueFd(::eventfd(1, EFD_CLOEXEC)), UniqueFd(::eventfd(1, EFD_CLOEXEC))};
  int first_calls = 0;
  int stale = 0;
  for (int i = 0; i < 2; ++i) {
    loop.watch(fds[i].get(), [&, i](bool, bool, bool) {
      ++first_calls;
      const int number = fds[1 - i].get();
      loop.forget(fds[i].get());
      loop.forget(number);
      fds[1 - i].reset();
      fds[1 - i] = UniqueFd(::eventfd(0, EFD_CLOEXEC));  // not readable
      REQUIRE(fds[1 - i].get() == number);
      loop.watch(number, [&](bool, bool, bool) { ++stale; });
    });
  }
  loop.after(50ms, [&] { loop.stop(); });
  loop.run();
  CHECK(first_calls == 1);
  CHECK(stale == 0);
}

TEST_CASE("Posted work leaves turns to timers and descriptors") {
  // Story: 60,000 answers that were posted while a node was busy ran in one go; its driver's end was not
  // seen.
  EventLoop loop;
  constexpr int kWork = 10'000;
  int done = 0;
  int done_at_timer = -1;
  int done_at_event = -1;
  UniqueFd event(::eventfd(1, EFD_CLOEXEC));
  for (int i = 0; i < kWork; ++i) {
    loop.post([&] {
      if (done == 0) {
        loop.after(0ms, [&] { done_at_timer = done; });
        loop.watch(event.get(), [&](bool, bool, bool) {
          done_at_event = done;
          loop.forget(event.get());
        });
      }
      if (++done == kWork) loop.stop();
    });
  }
  loop.run();
  CHECK(done == kWork);
  CHECK(done_at_timer > 0);
  CHECK(done_at_timer < kWork);
  CHECK(done_at_event > 0);
  CHECK(done_at_event < kWork);
}

TEST_CASE("Work that other threads post is done once each") {
  EventLoop loop;
  int done = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        loop.post([&] {
          if (++done == 20'000) loop.stop();
        });
      }
    });
  }
  loop.after(60s, [&] { loop.stop(); });
  loop.run();
  for (auto& thread : threads) thread.join();
  CHECK(done == 20'000);
}
