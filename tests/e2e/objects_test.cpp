// A full store over real nodes and workers: objects leave memory for disk, and come back.
#include "runtime/objects/objects.hpp"

#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <numeric>
#include <thread>

#include "scheduler/init/init.hpp"
#include "tests/e2e/objects.hpp"

namespace objects_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

using Numbers = std::vector<float>;

constexpr std::size_t kCount = 750'000;  // 3 MB

/// Owns objects in a process of its own.
struct Hoard {
  void put(int count) {
    for (int i = 0; i < count; ++i) owned.push_back(this_actor().session().put(Numbers(kCount, float(i))));
  }
  double total() {
    double all = 0;
    for (const auto& one : owned) all += sum_view(one.view());
    return all;
  }
  int pid() { return ::getpid(); }
  std::vector<ObjectRef<Numbers>> owned;
};

/// A cluster whose nodes have 8 MB of shared memory each, and spill to `folder`.
DriverSession small_stores(const std::string& folder, int nodes = 1) {
  ::setenv("TROUPE_REGIONS_BYTES", "8000000", 1);
  ::setenv("TROUPE_SPILL_FOLDER", folder.c_str(), 1);
  auto session = init(0, nullptr, {.nodes = nodes, .cpus_per_node = 2});
  ::unsetenv("TROUPE_REGIONS_BYTES");
  ::unsetenv("TROUPE_SPILL_FOLDER");
  return session;
}

std::vector<ObjectRef<Numbers>> put(const Session& session, int count) {
  std::vector<ObjectRef<Numbers>> put;
  for (int i = 0; i < count; ++i) put.push_back(session.put(Numbers(kCount, float(i))));
  return put;
}
std::size_t spilled(const Session& session) {
  return session.process().objects()->counts().spilled;
}
/// This process's files there that have no name.
std::vector<std::string> files_in(const std::string& folder) {
  return descriptors_of(::getpid(), folder);
}

}  // namespace

TEST_CASE("What does not fit a store goes to disk, and comes back to whoever wants it") {
  TempFolder folder;
  {
    auto session = small_stores(folder.path());
    {
      const auto objects = put(session, 6);
      CHECK(spilled(session) >= 4);
      CHECK_FALSE(files_in(folder.path()).empty());
      for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < 6; ++i) {
          INFO("round " << round << ", object " << i);
          CHECK(objects[std::size_t(i)].get() == Numbers(kCount, float(i)));
          CHECK(session.submit<&sum_view>(objects[std::size_t(i)]).get(60s) == double(i) * kCount);
        }
      }
    }
    CHECK(no_objects(session));
    CHECK(eventually([&] { return files_in(folder.path()).empty(); }));
    CHECK(session.put(Numbers(1'900'000)).view().size() == 1'900'000);  // all the room is there again
  }
  CHECK(names_in(folder.path()).empty());
}

TEST_CASE("Copies on another node make room for each other") {
  TempFolder folder;
  auto session = small_stores(folder.path(), 2);
  const auto objects = put(session, 6);
  std::vector<Future<double>> sums;
  for (const auto& node : session.nodes()) {
    if (node.gateway) continue;
    for (int round = 0; round < 2; ++round) {
      for (const auto& one : objects)
        sums.push_back(session.with({.num_cpus = 2, .node = node.id}).submit<&sum_view>(one));
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    INFO("sum " << i);
    CHECK(sums[i].get(60s) == double(i % 6) * kCount);
  }
}

TEST_CASE("A process makes room for another one of its node") {
  TempFolder folder;
  auto session = small_stores(folder.path());
  const auto hoard = session.spawn<Hoard>({.isolated = true});
  hoard.call<&Hoard::put>(2).get(60s);
  const auto objects = put(session, 2);
  CHECK(sum_view(objects[1].view()) == double(kCount));
  CHECK(hoard.call<&Hoard::total>().get(60s) == double(kCount));
  // A dead owner leaves nothing: there is room for two in use.
  ::kill(pid_t(hoard.call<&Hoard::pid>().get(60s)), SIGKILL);
  std::string why;
  CHECK(eventually([&] {
    try {
      const auto more = put(session, 2);
      const auto first = more[0].view();
      const auto second = more[1].view();
      return true;
    } catch (const LimitExceeded& error) {
      why = error.what();
      return false;
    }
  }));
  INFO(why);
}

TEST_CASE("Objects make room for other shared memory, too") {
  TempFolder folder;
  auto session = small_stores(folder.path());
  const auto objects = put(session, 2);
  {
    const auto first = objects[0].view();
    const auto second = objects[1].view();
    const auto why =
        message_of<LimitExceeded>([&] { session.open_region("large", 6'000'000, "a test", false); });
    INFO(why);
    CHECK(why.find("all that is there is in use") != std::string::npos);
  }
  CHECK(session.open_region("large", 6'000'000, "a test", false).size() >= 6'000'000);
  session.drop_region("large");
  for (int i = 0; i < 2; ++i) CHECK(objects[std::size_t(i)].get() == Numbers(kCount, float(i)));
}

TEST_CASE("A store that is full of what is in use says so, and has room again when a view goes") {
  TempFolder folder;
  auto session = small_stores(folder.path());
  const auto objects = put(session, 2);
  std::optional<View<float>> first = objects[0].view();
  const auto second = objects[1].view();
  const auto why = message_of<LimitExceeded>([&] { put(session, 1); });
  INFO(why);
  CHECK(why.find("cannot put an object of 3000000 bytes") != std::string::npos);
  CHECK(why.find("all that is there is in use") != std::string::npos);
  CHECK(why.find("TROUPE_REGIONS_BYTES") != std::string::npos);
  CHECK(sum_view(second) == double(kCount));
  first.reset();
  CHECK(put(session, 1)[0].get() == Numbers(kCount, 0.0F));
  CHECK(message_of<LimitExceeded>([&] { session.put(Numbers(2'100'000)); }).find("in use") ==
        std::string::npos);
  CHECK(sum_view(second) == double(kCount));
}

TEST_CASE("A disk that takes nothing is an error of the put, and nothing is lost") {
  TempFolder folder;
  auto session = small_stores(folder.path() + "/missing");
  const auto objects = put(session, 2);
  const auto why = message_of<LimitExceeded>([&] { put(session, 1); });
  INFO(why);
  CHECK(why.find(folder.path() + "/missing") != std::string::npos);
  for (int i = 0; i < 2; ++i) CHECK(objects[std::size_t(i)].get() == Numbers(kCount, float(i)));
  std::filesystem::create_directory(folder.path() + "/missing");
  CHECK(put(session, 1)[0].get() == Numbers(kCount, 0.0F));
  for (int i = 0; i < 2; ++i) CHECK(objects[std::size_t(i)].get() == Numbers(kCount, float(i)));
}

}  // namespace objects_test
