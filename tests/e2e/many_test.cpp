// A thousand processes that refer to what one owns that dies; a million tasks of one process.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "runtime/host/process.hpp"
#include "runtime/objects/objects.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/support.hpp"

namespace many_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

using Numbers = std::vector<double>;

int wait_for(const std::string& file) {
  return eventually([&] { return ::access(file.c_str(), F_OK) == 0; }, 600s) ? 1 : 0;
}
/// Regions of shared memory that the node has.
std::size_t regions(pid_t node) {
  std::set<std::uint64_t> found;
  const std::string folder = "/proc/" + std::to_string(node) + "/fd/";
  for (const auto& name : names_in(folder)) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(folder + name, gone).string();
    struct stat info {};
    const bool is_region = target.starts_with("/memfd:troupe:") && !target.starts_with("/memfd:troupe:life");
    if (is_region && ::stat((folder + name).c_str(), &info) == 0) found.insert(info.st_ino);
  }
  return found.size();
}

int next(int number) {
  return number + 1;
}

struct Owner {
  ObjectRef<Numbers> give() { return this_actor().session().put(Numbers(100'000, 2.0)); }
  /// One that never comes.
  ObjectRef<int> give_pending(const std::string& file) {
    return this_actor().session().compute<&wait_for>(file);
  }
  int pid() { return ::getpid(); }
};
struct Borrower {
  ObjectRef<Numbers> kept;
  ObjectRef<int> pending;
  void keep(const ObjectRef<Numbers>& given, const ObjectRef<int>& later, bool reads) {
    kept = given;
    pending = later;
    if (reads && kept.view().size() != 100'000) throw std::runtime_error("it is another object");
  }
  /// What it ends in.
  std::string await() {
    return message_of<ObjectLost>([&] { pending.get(600s); });
  }
  std::string read() {
    return message_of<ObjectLost>([&] { kept.get(600s); });
  }
  std::uint64_t release() {
    kept = {};
    pending = {};
    const auto& objects = *this_actor().process().objects();
    eventually([&] { return objects.counts().borrowed == 0 && objects.counts().here == 0; }, 60s);
    return objects.counts().borrowed + objects.counts().here;
  }
};

}  // namespace

TEST_CASE("A killed owner with a thousand borrowers: each gets one clear error, and no byte is left") {
  constexpr std::size_t kBorrowers = 1000;
  TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 4});
  const pid_t node = session.embedded()->node_pids().front();
  const auto owner = session.spawn<Owner>({.isolated = true});
  const auto borrowers = session.spawn_group<Borrower>(kBorrowers, {.isolated = true, .max_concurrency = 2});
  {
    const auto object = owner.call<&Owner::give>().get(60s);
    const auto pending = owner.call<&Owner::give_pending>(folder / "never").get(60s);
    std::vector<Future<void>> kept;
    for (std::size_t i = 0; i < kBorrowers; ++i)
      kept.push_back(borrowers[i].call<&Borrower::keep>(object, pending, i % 2 == 0));
    for (const auto& one : kept) one.get(120s);
  }
  CHECK(regions(node) > 0);
  const auto waiting = borrowers.call_all<&Borrower::await>();
  // They wait for it when it goes.
  ::kill(pid_t(owner.call<&Owner::pid>().get(60s)), SIGKILL);
  for (const auto& one : waiting) {
    const auto why = one.get(120s);
    if (why.find("the process that made it is gone: killed by signal 9") == std::string::npos) FAIL(why);
  }
  for (const auto& why : borrowers.call_all<&Borrower::read>().get(120s)) {
    if (why.find("the process that made it is gone: killed by signal 9") == std::string::npos) FAIL(why);
  }
  for (const auto left : borrowers.call_all<&Borrower::release>().get(120s)) CHECK(left == 0);
  CHECK(eventually([&] { return regions(node) == 0; }, 60s));
  CHECK(session.process().objects()->counts().borrowed == 0);
}

// Those that wait for workers have a bound, and submit() waits at it.
TEST_CASE("A million tasks of one process are all answered, in a bounded memory", "[.nightly]") {
  constexpr int kTasks = 1'000'000;
  constexpr long kMostMiB = 400;  // of this process at any time
  std::vector<std::atomic<std::uint8_t>> answers(kTasks);
  std::atomic<int> answered{0};
  std::atomic<int> wrong{0};
  auto session = init(0, nullptr, {.cpus_per_node = 4});
  for (int i = 0; i < kTasks; ++i) {
    session.submit<&next>(i).then([&, i](const Result<int>& got) {
      if (!got || *got != i + 1 || answers[std::size_t(i)].fetch_add(1) != 0) ++wrong;
      ++answered;
    });
  }
  CHECK(eventually([&] { return answered == kTasks; }, 600s));
  CHECK(wrong == 0);
  struct rusage used {};
  REQUIRE(::getrusage(RUSAGE_SELF, &used) == 0);
  CHECK(used.ru_maxrss / 1024 < kMostMiB);
}

}  // namespace many_test
