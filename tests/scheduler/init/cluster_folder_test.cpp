// What one user knows of a cluster: asking its head, one process at a time.
#include "scheduler/init/cluster_folder.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
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
