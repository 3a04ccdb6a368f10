/// Messages between ranks of different hosts: what they cost before the first, and how the first one
/// connects.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <numeric>
#include <thread>

#include "tests/collectives/rendezvous_ranks.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

namespace {

/// `each` ranks on each of `hosts`.
std::vector<std::string> hosts_of(int hosts, int each) {
  std::vector<std::string> names;
  for (int r = 0; r < hosts * each; ++r) names.push_back("host " + std::to_string(r / each));
  return names;
}

/// The ends of TCP connections that this process has, without those to the store at `port`.
std::size_t connections(std::uint16_t port) {
  std::size_t n = 0;
  const auto is_at = [&](const sockaddr_storage& address) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port) == port;
  };
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    sockaddr_storage peer{}, own{};
    socklen_t length = sizeof peer;
    const int fd = std::stoi(entry.path().filename());
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.ss_family != AF_INET)
      continue;
    length = sizeof own;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length);
    n += is_at(peer) || is_at(own) ? 0 : 1;
  }
  return n;
}

std::vector<std::string> run_all(std::uint16_t port, int size, const GroupBody& body,
                                 const InitOptions& options, const std::vector<std::string>& hosts) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return run_at("tcp://127.0.0.1:" + std::to_string(port), size, ranks, body, options, "native", hosts);
}

}  // namespace

TEST_CASE("connections grow with hosts and not with ranks; two ranks that talk have one more") {
  std::vector<std::size_t> before;
  for (const int each : {4, 8}) {
    std::size_t counted = 0, after = 0;
    const std::uint16_t port = free_port();
    const auto body = [&](const std::shared_ptr<ProcessGroup>& group) {
      group->barrier()->wait();
      if (group->rank() == 0) counted = connections(port);
      group->barrier()->wait();
      // Of ranks that are no gateways of their hosts for each other.
      const int other = each + 3;
      for (int lap = 0; lap < 3; ++lap) {
        float value = 7;
        if (group->rank() == 0) group->send(std::span<const float>(&value, 1), other)->wait();
        if (group->rank() == other) group->recv(std::span(&value, 1), 0)->wait();
        expect(value == 7, "the message came");
      }
      group->barrier()->wait();
      if (group->rank() == 0) after = connections(port);
      group->barrier()->wait();
    };
    for (const auto& what : run_all(port, 4 * each, body, kPatient, hosts_of(4, each))) CHECK(what == "");
    CHECK(after == counted + 2);
    before.push_back(counted);
  }
  CHECK(before[0] == 2 * 12);  // two connections for each of six pairs of hosts
  CHECK(before[1] == before[0]);
}

TEST_CASE("first messages between all ranks at once, both ways: each pair has one connection") {
  constexpr int kSize = 6;
  const auto hosts = hosts_of(2, kSize / 2);
  const std::uint16_t port = free_port();
  for (const bool encrypts : {false, true}) {
    const auto body = [&](const std::shared_ptr<ProcessGroup>& world) {
      for (int generation = 0; generation < 5; ++generation) {
        const auto group = world->new_group({0, 1, 2, 3, 4, 5});
        const int me = group->rank();
        // Small and large ones, and the parts of an all_to_all_v: in whatever order they connect.
        std::vector<float> out(kSize * 20000), in(out.size()), counted(kSize);
        std::vector<std::shared_ptr<Work>> works;
        for (int r = 0; r < kSize; ++r) {
          const std::size_t count = (me + r) % 2 == 0 ? 1 : 20000;
          const auto at = static_cast<std::size_t>(r) * 20000;
          std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(at), count, static_cast<float>(10 * me + r));
          works.push_back(group->recv(std::span(in).subspan(at, count), r));
          works.push_back(group->send(std::span<const float>(out).subspan(at, count), r));
        }
        const std::vector<float> mine(kSize, static_cast<float>(me));
        const std::vector<std::size_t> ones(kSize, 1);
        works.push_back(group->all_to_all(std::span<const float>(mine), ones, std::span(counted), ones));
        for (const auto& work : works) work->wait();
        for (int r = 0; r < kSize; ++r) {
          const std::size_t count = (me + r) % 2 == 0 ? 1 : 20000;
          const auto* from = in.data() + static_cast<std::size_t>(r) * 20000;
          expect(from[0] == static_cast<float>(10 * r + me) && from[count - 1] == from[0], "the message");
          expect(counted[static_cast<std::size_t>(r)] == static_cast<float>(r), "its part");
        }
        group->barrier()->wait();
        if (me == 0) {  // what was dialed in vain is gone soon
          const auto until = std::chrono::steady_clock::now() + 20s;
          while (connections(port) != 2 * (3 + 9) && std::chrono::steady_clock::now() < until)
            std::this_thread::yield();
          expect(connections(port) == 2 * (3 + 9), "three for the world, and one a pair");
        }
        group->barrier()->wait();
      }
    };
    InitOptions options = kPatient;
    options.encrypt_data_plane = encrypts;
    for (const auto& what : run_all(port, kSize, body, options, hosts)) CHECK(what == "");
  }
}

TEST_CASE("a first message to a rank that was killed aborts the group with its name") {
  const test::TempFolder folder;
  const std::string url = "file://" + (folder / "meet");
  const auto hosts = hosts_of(2, 3);
  for (const bool sends : {true, false}) {
    std::vector<pid_t> ranks;
    for (int r = 0; r < 6; ++r) {
      ranks.push_back(fork_process([&] {
        const auto group = init_process_group(
            "native", url,
            {.rank = r, .size = 6, .timeout = 60s, .operation_timeout = 60s, .host = hosts[std::size_t(r)]});
        float value = 1;
        try {
          group->barrier()->wait();
          if (r == 4) ::raise(SIGKILL);
          // No connection tells of its death: these two have none.
          if (r == 0 && sends) group->send(std::span<const float>(&value, 1), 4)->wait();
          if (r == 0) group->recv(std::span(&value, 1), 4)->wait();
          while (true) group->barrier()->wait();
        } catch (const CollectiveAborted& e) {
          expect(std::string(e.what()).find("rank 4") != std::string::npos, e.what());
        }
      }));
    }
    for (const int r : {0, 1, 2, 3, 5}) CHECK(exit_of(ranks[std::size_t(r)]) == 0);
    CHECK(exit_of(ranks[4]) == -SIGKILL);
  }
}

TEST_CASE("what a rank sent before it left arrives, however many messages it were") {
  // The receiver tells a sender now and then that its messages were taken: to one that had left this was an
  // error, and ended the group before the rest was received.
  const bool encrypts = GENERATE(false, true);
  const int from = GENERATE(1, kAnyRank);
  constexpr int kMessages = 60;
  InitOptions options = kPatient;
  options.encrypt_data_plane = encrypts;
  const auto body = [&](const std::shared_ptr<ProcessGroup>& group) {
    int value = 0;
    if (group->rank() == 1) {
      for (; value < kMessages; ++value) group->send(std::span<const int>(&value, 1), 0)->wait();
      return;
    }
    std::this_thread::sleep_for(300ms);  // it has left
    for (int i = 0; i < kMessages; ++i) {
      group->recv(std::span(&value, 1), from)->wait();
      expect(value == i, "message " + std::to_string(i));
    }
  };
  for (const auto& what : run_all(free_port(), 2, body, options, hosts_of(2, 1))) CHECK(what == "");
}
