// What one user knows of a cluster: asking its head, one process at a time.
#include "scheduler/init/cluster_folder.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

/// As a head that is stopped: the kernel takes connections.
class SilentHead {
 public:
  SilentHead() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::listen(fd_.get(), 64) == 0);
    REQUIRE(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    port_ = ::ntohs(at.sin_port);
  }
  Endpoint address() const { return {"127.0.0.1", port_}; }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

bool is_held(const std::string& lock) {
  const UniqueFd fd(::open(lock.c_str(), O_RDWR | O_CLOEXEC));
  return fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;
}

}  // namespace

TEST_CASE("those who wait for their turn to ask are told what the head did not do", "[folder]") {
  // Was: with a head that hangs, they blamed each other: "others hold .../ask.lock (try again)".
  const test::TempFolder root;
  const auto folder = ClusterFolder::open(root.path() + "/keys").value();
  const SilentHead silent, other;
  const auto key = CurveKeyPair::generate().public_key();
  const HeadContact head{silent.address(), key, folder.own_keys().value()};
  std::vector<ErrorInfo> errors(8);
  std::vector<std::thread> threads;
  const auto ask = [&](std::size_t i, Duration timeout) {
    errors[i] = folder.ask(head, wire::StatusAsk{1}, timeout).error();
  };
  threads.emplace_back(ask, 0, 3s);
  CHECK(test::eventually([&] { return is_held(root.path() + "/keys/ask.lock"); }));
  for (std::size_t i = 1; i < errors.size(); ++i) threads.emplace_back(ask, i, 20s);
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    CHECK(error.code == ErrorCode::kTimeout);
    CHECK_THAT(error.message(), Catch::Contains("takes connections and does not answer"));
  }
  // It is news for those who waited then, and of that head.
  const HeadContact second{other.address(), key, folder.own_keys().value()};
  CHECK_THAT(folder.ask(second, wire::StatusAsk{1}, 200ms).error().message(),
             Catch::Contains(to_string(other.address())));
}

// Was: it began anew without a word: all jobs, queues and keys were gone, or no machine could reach it.
TEST_CASE("a folder says what a head that ran from it has left no more, and nothing at a first start",
          "[folder]") {
  const test::TempFolder root;
  const std::string path = root.path() + "/keys", store = path + "/store", db = store + "/troupe.db";
  const auto folder = ClusterFolder::open(path).value();
  const auto lost = [&] { return folder.lost_of_head().value_or("nothing"); };
  CHECK(lost() == "nothing");
  const auto key = CurveKeyPair::generate().public_key();
  folder.save_head({"127.0.0.1", 1}, key).value();  // it joined another machine's head
  folder.own_keys().value();
  CHECK(lost() == "nothing");
  std::filesystem::remove(path + "/address");
  std::filesystem::remove(path + "/head.pub");
  folder.keys().load_or_generate("head").value();  // its first head did not come up
  CHECK(lost() == "nothing");
  std::filesystem::create_directory(store);
  std::ofstream(db) << "full";
  CHECK(lost() == "nothing");
  folder.save_head({"127.0.0.1", 1}, key).value();
  CHECK(lost() == "nothing");

  SECTION("an empty store") {
    std::filesystem::resize_file(db, 0);
    CHECK_THAT(lost(), Catch::Contains("its store/troupe.db is empty: it begins anew, without the jobs"));
  }
  SECTION("no store") {
    std::filesystem::remove_all(store);
    CHECK_THAT(lost(), Catch::Contains("its store/troupe.db is missing: it begins anew, without the jobs"));
  }
  SECTION("no key") {
    std::filesystem::remove(path + "/head.key");
    CHECK_THAT(lost(), Catch::Contains("its head.key is missing: another one is made"));
    std::filesystem::remove(path + "/address");
    std::filesystem::remove(path + "/head.pub");
    CHECK_THAT(lost(), Catch::Contains("its head.key is missing: another one is made"));
  }
  SECTION("neither") {
    std::filesystem::remove(path + "/head.key");
    std::filesystem::remove(db);
    CHECK_THAT(lost(), Catch::Contains("its store/troupe.db is missing") &&
                           Catch::Contains("; its head.key is missing, too; "));
  }
  CHECK(lost().find('\n') == std::string::npos);
}
