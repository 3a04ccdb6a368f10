/// The backend gloo: every operation on ranks that are threads, against scalar loops and the native group.

#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "collectives/gloo/gloo_group.hpp"
#include "collectives/gloo/pipe_signal.hpp"
#include "runtime/core/error.hpp"
#include "tests/collectives/library_checks.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/threads.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;
using troupe::test::contains;

/// Gloo forgets the list of interfaces when it throws for one that does not exist.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:gloo::transport::tcp::CreateDeviceAttr";
}

/// The sanitizer does not see the reference counts inside these libraries.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:libgloo.so\nrace:std::__exception_ptr\n";
}

namespace {

/// A rendezvous of ranks that are threads.
class InProcess final : public Store {
 public:
  void set(const std::string& key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::optional<std::string> find(const std::string& key, Duration wait) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, wait, [&] { return values_.contains(key); })) return std::nullopt;
    return values_.at(key);
  }
  std::int64_t erase(const std::string&) override { return 0; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

using Body = std::function<void(ProcessGroup&)>;

/// `body` on a thread a rank; what each threw.
std::vector<std::string> run_gloo(int size, const Body& body, GlooGroupOptions options = {}) {
  options.size = size;
  options.rendezvous = std::make_shared<InProcess>();
  return test::run_on_threads(static_cast<std::size_t>(size), [&](int r) {
    auto mine = options;
    mine.rank = r;
    const auto group = make_gloo_group(mine);
    body(*group);
  });
}

void all_good(const std::vector<std::string>& thrown) {
  for (const auto& what : thrown) CHECK_THAT(what, Catch::Equals(""));
}

bool skipped() {
  if (!has_gloo()) WARN("skipped: this build has no Gloo (apt-get install libgloo-dev)");
  return !has_gloo();
}

}  // namespace

TEST_CASE("gloo: the matrix of operations, messages, refusals and works") {
  if (skipped()) return;
  for (const int size : {1, 2, 3, 4}) {
    CAPTURE(size);
    all_good(run_gloo(size, check_library));
  }
}

TEST_CASE("gloo: a tree of leaves has the bits of its definition") {
  if (skipped()) return;
  for (const int leaves : {3, 5, 8}) {
    all_good(run_gloo(3, [&](ProcessGroup& group) { run_specs(group, tree_specs(leaves, 2000, 3), 3); },
                      {.leaves = deal_leaves(leaves, 3)}));
  }
}

TEST_CASE("gloo: a rank that does not come is a Timeout, and the others learn of it") {
  if (skipped()) return;
  std::atomic<int> given_up{0};
  std::atomic<int> timeouts{0};
  const auto body = [&](ProcessGroup& group) {
    std::vector<float> values(100);
    if (group.rank() == 2) {
      test::yield_until([&] { return given_up.load() == 2; });  // not in time
      (void)thrown_by<CollectiveAborted>([&] { group.all_reduce(std::span(values))->wait(); });
      return;
    }
    const auto work = group.all_reduce(std::span(values));
    try {
      work->wait();
      throw std::runtime_error("a rank was missing");
    } catch (const Timeout& e) {
      ++timeouts;
      const std::string call = "rank " + std::to_string(group.rank()) + ": all_reduce(sum, 100 x f32) #1";
      require(contains(e.what(), call) && contains(e.what(), "0.3 s"), e.what());
    } catch (const CollectiveAborted&) {
      // The other one was first, and closed its connections.
    }
    require(!group.abort_reason().empty() && work->exception() != nullptr, "no reason");
    (void)thrown_by<CollectiveAborted>([&] { group.barrier(); });
    ++given_up;
  };
  all_good(run_gloo(3, body, {.timeout = 300ms}));
  CHECK(timeouts.load() >= 1);
}

TEST_CASE("gloo: an abort ends the waits of all ranks, the first reason stays") {
  if (skipped()) return;
  std::atomic<int> waiting{0};
  all_good(run_gloo(3, [&](ProcessGroup& group) {
    std::vector<float> values(100), message(100);
    if (group.rank() == 1) {
      test::yield_until([&] { return waiting.load() == 2; });
      group.abort("enough");
      group.abort("more than enough");
      require(group.abort_reason() == "enough", group.abort_reason());
      require(contains(thrown_by<CollectiveAborted>([&] { group.barrier(); }), "enough"), "another reason");
      return;
    }
    const auto collective = group.all_reduce(std::span(values));
    const auto received = group.recv(std::span(message), 1);
    ++waiting;
    (void)thrown_by<CollectiveAborted>([&] { collective->wait(); });
    (void)thrown_by<CollectiveAborted>([&] { received->wait(); });
    (void)thrown_by<CollectiveAborted>([&] { received->wait(); });
  }));
}

TEST_CASE("gloo: when an aborted group is quiet, its collectives have ended") {
  if (skipped()) return;
  std::atomic<bool> seen{false};
  all_good(run_gloo(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) {
      test::yield_until([&] { return seen.load(); });
      return;
    }
    std::vector<float> first(100), second(100);
    const auto one = group.all_reduce(std::span(first)), two = group.all_reduce(std::span(second));
    group.abort("enough");
    group.await_quiet();
    for (const auto& work : {one, two}) require(work->is_completed(), "an operation goes on");
    seen = true;
  }));
}

TEST_CASE("gloo: an abort from another thread ends this rank's own wait") {
  if (skipped()) return;
  std::atomic<bool> seen{false};
  all_good(run_gloo(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) {
      test::yield_until([&] { return seen.load(); });
      return;
    }
    const auto work = group.barrier();
    require(!work->wait_for(1ms), "complete without the other rank");
    std::thread other([&] { group.abort("from outside"); });
    const std::string text = thrown_by<CollectiveAborted>([&] { work->wait(); });
    other.join();
    seen = true;
    require(contains(text, "from outside"), text);
  }));
}

/// Gloo ends the process, in its own thread, when more arrives than a buffer takes.
TEST_CASE("gloo: ranks that call different operations get an error that names both, and live") {
  if (skipped()) return;
  const std::vector<std::pair<std::string, Body>> calls{
      {"rank 0 broadcast(100 x f32, root 0) #1, rank 1 broadcast(60 x f32, root 0) #1",
       [](ProcessGroup& group) {
         std::vector<float> values(group.rank() == 0 ? 100 : 60);
         group.broadcast(std::span(values), 0)->wait();
       }},
      {"rank 0 all_reduce(sum in any order, 100 x f32) #1, rank 1 barrier() #1",
       [](ProcessGroup& group) {
         std::vector<float> values(100);
         group.rank() == 0 ? group.all_reduce(std::span(values), {ReduceOp::kSum, false})->wait()
                           : group.barrier()->wait();
       }},
      {"other counts than they take in all_to_all_v(f32) #1", [](ProcessGroup& group) {
         std::vector<float> in(group.rank() == 0 ? 10 : 9), out(10);
         const std::vector<std::size_t> takes{5, 5},
             gives = group.rank() == 0 ? takes : std::vector<std::size_t>{4, 5};
         group.all_to_all(in, gives, out, takes)->wait();
       }}};
  for (const auto& [names, call] : calls) {
    for (const auto& what : run_gloo(2, [&, call = call](ProcessGroup& group) {
           (void)thrown_by<CollectiveAborted>([&] { call(group); });
           (void)thrown_by<CollectiveAborted>([&] { group.barrier()->wait(); });
           throw std::runtime_error(group.abort_reason());
         })) {
      CHECK_THAT(what, Catch::Contains(names));
    }
  }
}

TEST_CASE("gloo: a rank may leave as soon as its own part is done") {
  if (skipped()) return;
  all_good(run_gloo(3, [](ProcessGroup& group) {
    std::vector<float> values(1 << 20, static_cast<float>(group.rank()));
    group.broadcast(std::span(values), 1)->wait();
    require(values.back() == 1, "not what the root sent");
  }));
}

/// One run in some ten ended by SIGPIPE: a rank that had given up closed its connections, and Gloo of another
/// wrote to one of them before it had seen that.
TEST_CASE("gloo: a write to a closed connection does not end the process") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  ::close(ends[0]);
  {
    const PipeSignalGuard guard;
    CHECK(::write(ends[1], "x", 1) == -1);
    CHECK(errno == EPIPE);
  }
  ::close(ends[1]);
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  CHECK(sigismember(&blocked, SIGPIPE) == 0);
}

TEST_CASE("gloo: options that make no sense are refused") {
  const auto store = std::make_shared<InProcess>();
  if (!has_gloo()) {
    CHECK_THROWS_WITH(make_gloo_group({}), Catch::Contains("libgloo-dev"));
    return;
  }
  CHECK_THROWS_WITH(make_gloo_group({.rank = 2, .size = 2, .rendezvous = store}),
                    Catch::Contains("rank 2 of 2"));
  CHECK_THROWS_AS(make_gloo_group({.rendezvous = nullptr}), BadConfig);
  CHECK_THROWS_AS(make_gloo_group({.timeout = 1ns, .rendezvous = store}), BadConfig);
  CHECK_THROWS_AS(make_gloo_group({.leaves = {{0, 1}, {1, 2}}, .rendezvous = store}), BadConfig);
  CHECK_THROWS_AS(make_gloo_group({.rendezvous = store, .interface = "nosuch0"}), Unavailable);
  CHECK_THROWS_AS(make_gloo_group({.size = 2, .timeout = 20ms, .rendezvous = store}), Timeout);
}
