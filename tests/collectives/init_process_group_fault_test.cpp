/// Deaths, in groups that ranks formed by themselves: who lives learns of it, and goes on without.

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "collectives/rendezvous/job_key.hpp"
#include "collectives/rendezvous/store/store_client.hpp"
#include "tests/collectives/rendezvous_ranks.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

namespace {

float sum_of(ProcessGroup& group, float mine) {
  std::vector<float> values(100, mine);
  group.all_reduce(std::span(values))->wait();
  return values[0];
}

/// Sums until the group is aborted, for which somebody else sees; why it was.
std::string abort_of(ProcessGroup& group) {
  try {
    while (true)
      expect(sum_of(group, 1) == static_cast<float>(group.size()), "sums are right before the abort");
  } catch (const CollectiveAborted& e) {
    return e.what();
  }
}

/// The place where the ranks of one test meet.
struct MeetingPlace {
  test::TempFolder folder;
  std::string url = "file://" + (folder / "meet");
  InitOptions options(int rank, int size) const {
    return {.rank = rank, .size = size, .timeout = 60s, .operation_timeout = 60s, .data_bytes = 1 << 20};
  }
};

bool listens(int fd) {
  int listens = 0;
  socklen_t length = sizeof listens;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
}

/// Of the one internet socket of this process that listens: where it would serve the store.
std::uint16_t listening_port() {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in at{};
    socklen_t size = sizeof at;
    const bool found = listens(fd) && ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0 &&
                       at.sin_family == AF_INET;
    if (found) return ntohs(at.sin_port);
  }
  return 0;
}

bool set_loopback(bool up) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  auto& address = reinterpret_cast<sockaddr_in&>(request.ifr_addr);
  address.sin_family = AF_INET;
  // With the address goes the route: else nothing answers, and nothing fails.
  if (!up && ::ioctl(fd.get(), SIOCSIFADDR, &request) != 0) return false;
  if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return false;
  const int flags = up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP;
  request.ifr_flags = static_cast<short>(flags);
  return ::ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0;
}

/// From here on this process is on a network of its own; false: it may not.
bool enter_own_network() {
  const std::string user = std::to_string(::geteuid()), group = std::to_string(::getegid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << user << " " << user << " 1";
  std::ofstream("/proc/self/gid_map") << group << " " << group << " 1";
  return set_loopback(true);
}

/// A pipe of which forked ranks have both ends.
struct Pipe {
  Pipe() { REQUIRE(::pipe(ends) == 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  template <class T = char>
  void put(T value = {}) const {
    expect(::write(ends[1], &value, sizeof value) == sizeof value, "the pipe takes it");
  }
  template <class T = char>
  T take() const {
    T value{};
    expect(::read(ends[0], &value, sizeof value) == sizeof value, "something comes");
    return value;
  }
  int ends[2];
};

void await_abort(const ProcessGroup& group) {
  while (group.abort_reason().empty()) std::this_thread::sleep_for(1ms);
}

}  // namespace

TEST_CASE("after kill -9 of a rank the others leave the collective and form the next generation without it") {
  const MeetingPlace place;
  const auto ranks = fork_ranks(4, [&](int r) {
    auto group = init_process_group("native", place.url, place.options(r, 4));
    if (r == 2) {
      sum_of(*group, 1);
      ::raise(SIGKILL);
    }
    const auto why = abort_of(*group);
    expect(why.find("rank 2 (pid") != std::string::npos && why.find("died") != std::string::npos, why);
    const Generation before = group->generation();
    group = group->rebuild();
    expect(group->generation() > before, "it is a later generation");
    expect(group->size() == 3 && group->rank() == (r == 3 ? 2 : r), "ranks are close together");
    expect(sum_of(*group, static_cast<float>(r)) == 4, "the sum of those that live");
    const auto pair = group->new_group({0, 2});
    if (pair) expect(sum_of(*pair, static_cast<float>(r)) == 3, "new groups of the new ranks");
    (void)group->new_group({0, 1, 2});  // so that nobody is in the sum any more
    if (r == 3) ::raise(SIGKILL);
    (void)abort_of(*group);
    group = group->rebuild();
    expect(sum_of(*group, static_cast<float>(r)) == 1, "and again");
  });
  CHECK(exits_of(ranks) == std::vector{0, 0, -SIGKILL, -SIGKILL});
  CHECK(std::filesystem::is_empty(place.folder.path()));
}

TEST_CASE("after an abort the same processes form the next generation, by rebuild or by initialising again") {
  const auto thrown = run_ranks(3, [](const std::shared_ptr<ProcessGroup>& first) {
    auto group = first;
    if (group->rank() == 1) group->abort("enough");
    expect(abort_of(*group).find("enough") != std::string::npos, "the reason is told");
    group = group->rebuild();
    // Those that see nothing wrong are taken along.
    if (group->rank() == 2) {
      expect(sum_of(*group, 1) == 3, "all go on");
    } else {
      expect(abort_of(*group).find("rank 2 forms the next generation") != std::string::npos,
             "the reason is told");
    }
    group = group->rebuild();
    expect(sum_of(*group, 1) == 3, "all go on");
  });
  for (const auto& what : thrown) CHECK(what.empty());

  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  for (int size = 3; size > 0; --size) {
    std::vector<int> ranks;
    for (int r = size; r-- > 0;) ranks.push_back(r);
    const auto again = run_at(
        url, size, ranks, [](const std::shared_ptr<ProcessGroup>& group) { group->abort("and once more"); });
    for (const auto& what : again) CHECK(what.empty());
  }
}

TEST_CASE("a rank that dies while the group is formed is named, and not waited for") {
  const MeetingPlace place;
  const pid_t dies = fork_process([&] {
    std::thread([] {
      // Rank 2 never comes, so this is while the ranks wait for it.
      std::this_thread::sleep_for(300ms);
      ::raise(SIGKILL);
    }).detach();
    init_process_group("native", place.url, place.options(1, 3));
  });
  const pid_t waits = fork_process([&] {
    try {
      init_process_group("native", place.url, place.options(0, 3));
    } catch (const CollectiveAborted& e) {
      expect(std::string(e.what()).find("rank 1 (pid") != std::string::npos, e.what());
      return;
    }
    expect(false, "it was aborted");
  });
  CHECK(exits_of({dies, waits}) == std::vector{-SIGKILL, 0});
  CHECK(std::filesystem::is_empty(place.folder.path()));
}

TEST_CASE("when rank 0 is killed the others learn of it, and initialise again with what is left") {
  const MeetingPlace place;
  const auto ranks = fork_ranks(3, [&](int r) {
    auto group = init_process_group("native", place.url, place.options(r, 3));
    if (r == 0) {
      sum_of(*group, 1);
      ::raise(SIGKILL);
    }
    expect(abort_of(*group).find("rank 0 (") != std::string::npos, "the reason is told");
    group.reset();
    group = init_process_group("native", place.url, place.options(r - 1, 2));
    expect(sum_of(*group, 1) == 2, "those that live go on");
  });
  CHECK(exits_of(ranks) == std::vector{-SIGKILL, 0, 0});
  CHECK(std::filesystem::is_empty(place.folder.path()));
}

/// The store was rank 0's, and went with it.
TEST_CASE("when the rank that serves the store is killed, and the next, the others rebuild without them") {
  const MeetingPlace place;
  const auto ranks = fork_ranks(5, [&](int r) {
    auto group = init_process_group("native", place.url, place.options(r, 5));
    const auto pair = group->new_group({2, 4});  // of none of the dead: goes on
    if (r == 0) {
      sum_of(*group, 1);
      ::raise(SIGKILL);
    }
    (void)abort_of(*group);
    const Generation before = group->generation();
    group = group->rebuild();
    expect(group->generation() > before, "it is a later generation");
    expect(group->size() == 4 && group->rank() == r - 1, "ranks are close together");
    expect(sum_of(*group, static_cast<float>(r)) == 10, "the sum of those that live");
    if (pair) expect(sum_of(*pair, 1) == 2, "a group of none of the dead");
    if (r == 1 || r == 3) {  // who serves now, and another at once
      try {
        sum_of(*group, 1);
      } catch (const CollectiveAborted&) {
        // The other one was first.
      }
      ::raise(SIGKILL);
    }
    (void)abort_of(*group);
    group = group->rebuild();
    expect(group->size() == 2, "two are left");
    expect(sum_of(*group, static_cast<float>(r)) == 6, "and again");
    const auto again = group->new_group({0, 1});
    expect(sum_of(*again, 1) == 2, "new groups at the third store");
    if (pair) expect(sum_of(*pair, 1) == 2, "and still");
  });
  CHECK(exits_of(ranks) == std::vector{-SIGKILL, -SIGKILL, 0, -SIGKILL, 0});
}

TEST_CASE("a living rank that the others take for dead serves no store of its own") {
  // Was: a rank that came back after a silence was refused by the next store, as one that is over, took the
  // rank that serves it for dead, and served another one alone: its rebuild() waited until the timeout.
  const MeetingPlace place;
  const std::string key(64, '7');
  int ports[2], over[2];
  REQUIRE((::pipe(ports) == 0 && ::pipe(over) == 0));
  const auto ranks = fork_ranks(3, [&](int r) {
    ::close(over[1]);
    auto options = place.options(r, 3);
    options.key = key;
    options.timeout = 20s;
    const auto group = init_process_group("native", place.url, options);
    const std::uint16_t port = r == 1 ? listening_port() : 0;
    expect(::write(ports[1], &port, sizeof port) == sizeof port, "the test hears where rank 1 would serve");
    char byte = 0;
    if (r == 1) (void)!::read(over[0], &byte, 1);  // it serves until the test is over
    while (group->abort_reason().empty()) std::this_thread::sleep_for(1ms);
    try {
      if (r == 2) (void)group->rebuild();
    } catch (const Unavailable& e) {
      return expect(std::string(e.what()).find("took this rank for dead") != std::string::npos, e.what());
    }
    expect(r == 1, "rank 2 is told that there is no store for it");
  });
  std::uint16_t port = 0;
  for (int r = 0; r < 3; ++r) {  // all have their group
    std::uint16_t one = 0;
    REQUIRE(::read(ports[0], &one, sizeof one) == sizeof one);
    if (one != 0) port = one;
  }
  REQUIRE((::kill(ranks[2], SIGSTOP) == 0 && ::waitpid(ranks[2], nullptr, WUNTRACED) == ranks[2]));
  ::kill(ranks[0], SIGKILL);
  CHECK(exit_of(ranks[0]) == -SIGKILL);
  // Rank 2 joins the next store and is silent: a connection of its own that ends says so at once.
  StoreClient::Options as_two{.at = {"127.0.0.1", port}, .rank = 2, .world_size = 3, .server = 1};
  as_two.key = configured_job_key(key, {}).value().value();
  const auto joins = [&] {
    auto client = StoreClient::connect(as_two);
    return client ? (*client)->join("rank 2").status : StoreStatus::kAbsent;
  };
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (joins() != StoreStatus::kOver && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(5ms);
  ::kill(ranks[2], SIGCONT);
  CHECK(exit_of(ranks[2]) == 0);
  ::close(over[1]);
  CHECK(exit_of(ranks[1]) == 0);
  for (const int end : {ports[0], ports[1], over[0]}) ::close(end);
}

TEST_CASE("a rank that has no network takes nobody for dead who cannot be reached") {
  // Was: whatever failed at once was a refusal. A host whose interface went down took all others for dead,
  // and formed a next generation of its own beside theirs.
  const MeetingPlace place;
  const Pipe formed;
  constexpr int kMayNot = 77;
  const pid_t host = fork_process([&] {
    if (!enter_own_network()) ::_exit(kMayNot);
    const auto ranks = fork_ranks(3, [&](int r) {
      auto options = place.options(r, 3);
      options.timeout = 20s;
      auto group = init_process_group("native", place.url, options);
      formed.put();
      if (r == 0) ::pause();
      await_abort(*group);
      group = group->rebuild();  // at a store that rank 2 reaches within the host alone
      expect(group->size() == 2 && sum_of(*group, 1) == 2, "both go on, and together");
    });
    for (int r = 0; r < 3; ++r) formed.take();
    expect(set_loopback(false), "the network goes");
    ::kill(ranks[0], SIGKILL);
    expect(exits_of(ranks) == std::vector{-SIGKILL, 0, 0}, "how they end");
  });
  const int how = exit_of(host);
  if (how == kMayNot) {
    WARN("not shown: network namespaces are not permitted here");
  } else {
    CHECK(how == 0);
  }
}

TEST_CASE("a rank that missed a store that lived for short goes on with the others at the next") {
  // Was: each rank counted the stores that it had seen. Who had seen fewer asked for the next generation by
  // another number than the others, and all waited for each other.
  const MeetingPlace place;
  const Pipe formed, served;
  const auto ranks = fork_ranks(4, [&](int r) {
    auto options = place.options(r, 4);
    options.timeout = 20s;
    auto group = init_process_group("native", place.url, options);
    const auto pair = group->new_group({1, 2});
    formed.put();
    if (r == 0) ::pause();
    await_abort(*group);
    if (pair) (void)pair->rebuild();  // both are at the store of rank 1
    if (r == 2) served.put();
    if (r == 1) {
      served.take();
      ::raise(SIGKILL);
    }
    group = group->rebuild();
    expect(group->size() == 2 && sum_of(*group, 1) == 2, "the two that are left go on");
  });
  for (int r = 0; r < 4; ++r) formed.take();
  REQUIRE((::kill(ranks[3], SIGSTOP) == 0 && ::waitpid(ranks[3], nullptr, WUNTRACED) == ranks[3]));
  ::kill(ranks[0], SIGKILL);
  CHECK((exit_of(ranks[0]) == -SIGKILL && exit_of(ranks[1]) == -SIGKILL));
  ::kill(ranks[3], SIGCONT);
  CHECK((exit_of(ranks[2]) == 0 && exit_of(ranks[3]) == 0));
}

TEST_CASE("generations are later than those that were formed at a store before, by other ranks too") {
  // Was: who served the next store counted on from its own groups.
  const MeetingPlace place;
  const Pipe formed, generations;
  const auto ranks = fork_ranks(3, [&](int r) {
    auto group = init_process_group("native", place.url, place.options(r, 3));
    const auto alone = group->new_group({1});
    formed.put();
    if (r == 0) ::pause();
    await_abort(*group);
    if (r == 1) {
      generations.put(alone->rebuild()->generation());
      ::raise(SIGKILL);
    }
    const auto before = generations.take<Generation>();
    expect(group->rebuild()->generation() > before, "it is a later generation");
  });
  for (int r = 0; r < 3; ++r) formed.take();
  ::kill(ranks[0], SIGKILL);
  CHECK(exits_of(ranks) == std::vector{-SIGKILL, -SIGKILL, 0});
}

TEST_CASE("a rank that cannot begin to form a group tells the others, and stays in step") {
  // Was: it had nothing to say to the store yet, so they waited for it until the timeout.
  const MeetingPlace place;
  const auto ranks = fork_ranks(2, [&](int r) {
    auto options = place.options(r, 2);
    options.timeout = 20s;
    const auto group = init_process_group("native", place.url, options);
    sum_of(*group, 1);
    rlimit before{};
    expect(::getrlimit(RLIMIT_NOFILE, &before) == 0, "the limit");
    const UniqueFd next(::dup(STDERR_FILENO));
    const rlimit none{static_cast<rlim_t>(next.get()), before.rlim_max};  // those below are in use
    if (r == 0) expect(::setrlimit(RLIMIT_NOFILE, &none) == 0, "no descriptor is left");
    try {
      (void)group->new_group({0, 1});
      expect(false, "there is no group");
    } catch (const IoError& e) {
      expect(r == 0, e.what());
    } catch (const Unavailable& e) {
      expect(r == 1 && std::string(e.what()).find("rank 0: ") != std::string::npos, e.what());
    }
    if (r == 0) expect(::setrlimit(RLIMIT_NOFILE, &before) == 0, "the limit");
    expect(sum_of(*group->new_group({0, 1}), 1) == 2, "the next group");
  });
  CHECK(exits_of(ranks) == std::vector{0, 0});
}

TEST_CASE("a rank that lost its connection to a living store serves none of its own") {
  // Was: the server of the store dropped a silent rank. When that one came back it took the server for dead,
  // and formed a next generation by itself, beside that of the others.
  const MeetingPlace place;
  const auto ranks = fork_ranks(3, [&](int r) {
    auto group = init_process_group("native", place.url, place.options(r, 3));
    const auto met = group->barrier();
    if (r == 1) met->wait();  // all have their group
    std::vector<int> open;    // and none that comes to be when the first ends
    for (int fd = 3; r == 1 && fd < 1024; ++fd) {
      if (::fcntl(fd, F_GETFD) >= 0 && !listens(fd)) open.push_back(fd);
    }
    for (const int fd : open) ::shutdown(fd, SHUT_RDWR);
    while (group->abort_reason().empty()) std::this_thread::sleep_for(1ms);
    if (r == 1) {
      try {
        (void)group->rebuild();
      } catch (const Unavailable& e) {
        return expect(std::string(e.what()).find("took this rank for dead") != std::string::npos, e.what());
      }
      expect(false, "rank 1 is told that there is no store for it");
    }
    group = group->rebuild();
    expect(group->size() == 2 && sum_of(*group, 1) == 2, "the others go on");
  });
  CHECK(exits_of(ranks) == std::vector{0, 0, 0});
}

TEST_CASE("a rank that leaves aborts nothing; one that does not call rebuild is named") {
  std::atomic<bool> over{false};
  const auto thrown =
      run_ranks(3,
                [&](const std::shared_ptr<ProcessGroup>& world) {
                  const auto pair = world->new_group({0, 1});
                  if (!pair) return;  // rank 2 leaves
                  if (pair->rank() == 0) {
                    const auto ends = std::shared_ptr<void>(nullptr, [&](void*) { over = true; });
                    (void)pair->rebuild();
                  }
                  expect(abort_of(*pair).find("rank 0 forms the next generation") != std::string::npos,
                         "why it is aborted");
                  test::yield_until([&] { return over.load(); });
                },
                {.timeout = 4s});
  CHECK_THAT(thrown[0], Catch::Contains("rank 1 lives and did not call rebuild()"));
  CHECK(thrown[1].empty());
  CHECK(thrown[2].empty());
}
