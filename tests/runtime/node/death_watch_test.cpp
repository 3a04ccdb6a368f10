/// How a node learns of the end of its processes: real ones, that are killed, exit, or lose a thread only.

#include "runtime/node/death_watch.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <thread>

#include "runtime/node/child.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

/// A forked process that holds its lock and then runs `body`.
struct Forked {
  SharedMemory lock = DeathWatch::make_lock().value();
  Child child;

  explicit Forked(const std::function<void()>& body, bool holds = true) {
    int ready[2];
    REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
    child.pid = ::fork();
    if (child.pid == 0) {
      const bool held = !holds || hold_lock(UniqueFd(::dup(lock.fd()))).ok();
      if (!held || ::write(ready[1], "r", 1) != 1) ::_exit(99);
      body();
      ::_exit(98);
    }
    ::close(ready[1]);
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
    child.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  }
  ~Forked() {
    if (child.pid <= 0) return;
    signal_child(child, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
  }
  std::string reaped() {
    REQUIRE(wait_ended(child, 60s));
    const std::string how = reap(child);
    child.pid = -1;
    return how;
  }
};

[[noreturn]] void for_ever() {
  while (true) ::pause();
}

/// What a watch told, in order.
class Told {
 public:
  void operator()(ProcessId process) {
    const std::lock_guard guard(mutex_);
    told_.push_back(process);
    changed_.notify_all();
  }
  std::vector<ProcessId> wait(std::size_t count, std::chrono::milliseconds limit = 60s) {
    std::unique_lock guard(mutex_);
    changed_.wait_for(guard, limit, [&] { return told_.size() >= count; });
    return told_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ProcessId> told_;
};

}  // namespace

TEST_CASE("a process that is killed or fails is told, with the reason that reaping gives later") {
  Told told;
  Forked killed(for_ever), failed([] {
    for (::usleep(100'000);;) ::_exit(3);
  }),
      lives(for_ever);
  DeathWatch watch([&](ProcessId process) { told(process); });
  watch.add({1}, std::move(killed.lock));
  watch.add({2}, std::move(failed.lock));
  watch.add({3}, std::move(lives.lock));
  CHECK(how_it_ends(killed.child) == std::nullopt);
  signal_child(killed.child, SIGKILL);
  auto both = told.wait(2);
  std::sort(both.begin(), both.end());
  CHECK(both == std::vector<ProcessId>{{1}, {2}});
  CHECK(how_it_ends(killed.child) == "killed by signal 9 (SIGKILL)");
  CHECK(how_it_ends(failed.child) == "exit code 3");
  CHECK(how_it_ends(lives.child) == std::nullopt);
  CHECK(killed.reaped() == "killed by signal 9 (SIGKILL)");
  CHECK(failed.reaped() == "exit code 3");
}

TEST_CASE("an end without an error, or of a thread alone, is left to the pidfd") {
  Told told;
  Forked exits([] { ::_exit(0); });
  Forked loses_a_thread([] {
    std::thread(for_ever).detach();
    ::syscall(SYS_exit, 0);  // of this thread, which holds the lock
  });
  DeathWatch watch([&](ProcessId process) { told(process); });
  watch.add({1}, std::move(exits.lock));
  watch.add({2}, std::move(loses_a_thread.lock));
  CHECK(told.wait(2).size() == 2);
  CHECK(how_it_ends(exits.child) == std::nullopt);
  CHECK(how_it_ends(loses_a_thread.child) == std::nullopt);
  CHECK_FALSE(wait_ended(loses_a_thread.child, 50ms));
  CHECK(exits.reaped() == "exit code 0");
}

TEST_CASE("what is not watched is not told") {
  Told told;
  Forked removed(for_ever), holds_nothing(for_ever, false), last(for_ever);
  DeathWatch watch([&](ProcessId process) { told(process); });
  watch.add({1}, std::move(removed.lock));
  watch.add({2}, std::move(holds_nothing.lock));
  watch.add({3}, std::move(last.lock));
  watch.remove({1});
  watch.remove({7});
  for (const Forked* one : {&removed, &holds_nothing, &last}) signal_child(one->child, SIGKILL);
  CHECK(told.wait(2, 300ms) == std::vector<ProcessId>{{3}});
}

TEST_CASE("more processes than one wait can take: those beyond are left to their pidfds") {
  Told told;
  std::vector<std::unique_ptr<Forked>> many;
  for (int i = 0; i < 130; ++i) many.push_back(std::make_unique<Forked>(for_ever));
  DeathWatch watch([&](ProcessId process) { told(process); });
  for (std::uint64_t i = 0; i < many.size(); ++i) watch.add({i}, std::move(many[i]->lock));
  for (const auto& one : many) signal_child(one->child, SIGKILL);
  CHECK(told.wait(127).size() == 127);
  CHECK(told.wait(128, 100ms).size() == 127);
}

TEST_CASE("a lock is taken once, and only from memory that is one") {
  const auto lock = DeathWatch::make_lock().value();
  REQUIRE(hold_lock(UniqueFd(::dup(lock.fd()))).ok());
  CHECK(hold_lock(UniqueFd(::dup(lock.fd()))).error().code == ErrorCode::kRefused);
  CHECK_FALSE(hold_lock(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))).ok());
}
