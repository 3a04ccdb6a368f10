// Large objects between two nodes: over direct connections, whose ends are killed in the middle.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <numeric>

#include "runtime/objects/objects.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/objects.hpp"

namespace direct_objects_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

using Numbers = std::vector<float>;
constexpr std::size_t kSome = 5'000'000;              // 20 MB
constexpr std::size_t kMany = std::size_t{64} << 20;  // 256 MiB
constexpr std::uint64_t kManyBytes = kMany * sizeof(float);

struct Far {
  Numbers make(std::uint64_t count, float value) { return Numbers(count, value); }
  double sum(const View<float>& numbers) { return std::accumulate(numbers.begin(), numbers.end(), 0.0); }
  std::uint64_t direct() { return this_actor().process().objects()->counts().direct; }
  int pid() { return ::getpid(); }
};

struct Two {
  explicit Two() : session(init(0, nullptr, {.nodes = 2, .cpus_per_node = 4})) {
    for (const auto& node : session.nodes()) {
      if (node.id != session.node() && !node.gateway) far = node.id;
    }
  }
  ActorHandle<Far> spawn() const { return session.spawn<Far>({.isolated = true, .node = far}); }
  std::uint64_t direct() const { return session.process().objects()->counts().direct; }
  DriverSession session;
  NodeId far{};
};

/// What has come so far of the copies that a process fetches.
std::uint64_t fetched(pid_t pid) {
  std::uint64_t bytes = 0;
  for (const auto& path : descriptors_of(pid, "/memfd:troupe:copy/")) {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) bytes = std::max(bytes, std::uint64_t(info.st_blocks) * 512);
  }
  return bytes;
}
/// Stops `sender` or `receiver` once something has come, and says whether much is missing then.
bool stop_in_the_middle(pid_t receiver, pid_t stopped, const std::function<bool()>& is_over) {
  REQUIRE(eventually([&] { return fetched(receiver) > 0 || is_over(); }, 60s));
  ::kill(stopped, SIGSTOP);
  const std::uint64_t bytes = fetched(receiver);
  return bytes > 0 && bytes + (std::uint64_t{64} << 20) < kManyBytes;
}
std::size_t descriptors() {
  return names_in("/proc/self/fd").size();
}

}  // namespace

TEST_CASE("Large objects and answers go to another node over direct connections") {
  const Two two;
  const auto far = two.spawn();
  const auto object = two.session.put(Numbers(kSome, 0.5F));
  CHECK(far.call<&Far::sum>(object).get(60s) == 0.5 * kSome);
  CHECK(far.call<&Far::direct>().get(60s) == 1);
  CHECK(far.call<&Far::make>(kSome, 3.0F).get(60s) == Numbers(kSome, 3.0F));
  CHECK(two.direct() == 1);
  CHECK(far.call<&Far::make>(200'000, 4.0F).get(60s) == Numbers(200'000, 4.0F));  // too small for one
  CHECK(two.direct() == 1);
}

TEST_CASE("Objects that are to be encrypted go over the links") {
  ::setenv("TROUPE_ENCRYPT_OBJECTS", "1", 1);
  const Two two;
  ::unsetenv("TROUPE_ENCRYPT_OBJECTS");
  const auto far = two.spawn();
  const auto object = two.session.put(Numbers(kSome, 0.5F));
  CHECK(far.call<&Far::sum>(object).get(60s) == 0.5 * kSome);
  CHECK(far.call<&Far::make>(kSome, 3.0F).get(60s) == Numbers(kSome, 3.0F));
  CHECK(far.call<&Far::direct>().get(60s) == 0);
  CHECK(two.direct() == 0);
}

TEST_CASE("A sender that is killed in the middle of a large object is an error, and nothing is left") {
  const Two two;
  CHECK(two.spawn().call<&Far::make>(kSome, 1.0F).get(60s).size() == kSome);  // its threads are there
  bool in_the_middle = false;
  for (int tries = 0; tries < 20 && !in_the_middle; ++tries) {
    const auto far = two.spawn();
    const pid_t pid = far.call<&Far::pid>().get(60s);
    const std::size_t before = descriptors();
    auto answer = far.call<&Far::make>(kMany, 2.0F);
    in_the_middle = stop_in_the_middle(::getpid(), pid, [&] { return answer.ready(); });
    ::kill(pid, SIGKILL);
    if (!in_the_middle) continue;
    CHECK(code_of([&] { answer.get(60s); }) == "actor died");
    CHECK(eventually([&] { return descriptors() <= before && fetched(::getpid()) == 0; }));
  }
  CHECK(in_the_middle);
  CHECK(two.spawn().call<&Far::make>(kSome, 5.0F).get(60s) == Numbers(kSome, 5.0F));
}

TEST_CASE("A receiver that is killed in the middle of a large object keeps nobody else from it") {
  const Two two;
  const auto object = two.session.put(Numbers(kMany, 0.5F));
  const auto other = two.spawn();
  CHECK(other.call<&Far::sum>(object).get(60s) == 0.5 * kMany);  // this process listens now
  bool in_the_middle = false;
  for (int tries = 0; tries < 20 && !in_the_middle; ++tries) {
    const auto again = two.session.put(Numbers(kMany, 0.5F));
    const auto far = two.spawn();
    const pid_t pid = far.call<&Far::pid>().get(60s);
    const std::size_t before = descriptors();
    auto sum = far.call<&Far::sum>(again);
    in_the_middle = stop_in_the_middle(pid, pid, [&] { return sum.ready(); });
    ::kill(pid, SIGKILL);
    if (!in_the_middle) continue;
    CHECK(code_of([&] { sum.get(60s); }) == "actor died");
    CHECK(other.call<&Far::sum>(again).get(60s) == 0.5 * kMany);
    CHECK(eventually([&] { return descriptors() <= before; }));
  }
  CHECK(in_the_middle);
}

// Was: the owner heard neither that it failed nor that it died, and others of its node waited for its copy
// for good.
TEST_CASE("A receiver that dies in the middle while the link is broken keeps nobody else from the object") {
  const Two two;
  const auto object = two.session.put(Numbers(kMany, 0.5F));
  const auto other = two.spawn();
  CHECK(other.call<&Far::sum>(object).get(60s) == 0.5 * kMany);
  bool in_the_middle = false;
  for (int tries = 0; tries < 20 && !in_the_middle; ++tries) {
    const auto again = two.session.put(Numbers(kMany, 0.5F));
    const auto far = two.spawn();
    const pid_t pid = far.call<&Far::pid>().get(60s);
    auto sum = far.call<&Far::sum>(again);
    in_the_middle = stop_in_the_middle(pid, pid, [&] { return sum.ready(); });
    if (in_the_middle) CHECK(cut_connections(children(::getpid(), "troupe-node")) >= 2);
    ::kill(pid, SIGKILL);
    if (!in_the_middle) continue;
    CHECK_THROWS(sum.get(60s));
    const auto read = [&] {
      try {
        return other.call<&Far::sum>(again).get(60s) == 0.5 * kMany;
      } catch (const Unavailable&) {
        return false;
      }
    };
    CHECK(eventually(read, 60s));
  }
  CHECK(in_the_middle);
}

}  // namespace direct_objects_test
