/// Groups that ranks form by themselves: every URL, subsets, bad input, and nothing left behind.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cfenv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

#include "collectives/rendezvous/backends.hpp"
#include "collectives/rendezvous/group_formation.hpp"
#include "collectives/rendezvous/init.hpp"
#include "collectives/rendezvous/meeting_file.hpp"
#include "runtime/core/log.hpp"
#include "tests/collectives/rendezvous_ranks.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

namespace {

const std::string kJobKey(64, '7');

/// The sum over the ranks of 2^rank, as every rank got it.
float sum_over(ProcessGroup& group) {
  std::vector<float> values(1000, static_cast<float>(1 << group.rank()));
  group.all_reduce(std::span(values))->wait();
  for (const float v : values) {
    if (v != values[0]) throw std::runtime_error("elements differ");
  }
  return values[0];
}

/// A group of which nothing works but its end.
struct Fake final : ProcessGroup {
  explicit Fake(const BackendContext& c)
      : ProcessGroup({.backend = "fake",
                      .rank = c.rank,
                      .size = c.size,
                      .generation = c.generation,
                      .leaves = rank_leaves(c.size)}) {}
  std::string abort_reason() const override { return {}; }
  std::shared_ptr<Work> launch(std::span<const Op>) override { return completed_work(); }
  void stop(const std::string&) override { on_stop(); }
  std::function<void()> on_stop = [] {};
};
std::shared_ptr<ProcessGroup> make_fake(const BackendContext& context) {
  return std::make_shared<Fake>(context);
}

/// Ends this process once others have written these files.
[[noreturn]] void dies_without_leaving(const test::TempFolder& folder,
                                       const std::vector<std::string>& files) {
  for (const auto& file : files) test::yield_until([&] { return std::filesystem::exists(folder / file); });
  ::_exit(0);
}

}  // namespace

TEST_CASE("ranks as processes meet under env://, tcp:// and file://, and leave nothing behind") {
  const test::TempFolder folder;
  ::setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
  const std::size_t descriptors = open_descriptors();
  const std::string port = std::to_string(free_port());
  const std::string path = folder / "meet";
  for (const std::string& url : {std::string("env://"), "tcp://localhost:" + port, "file://" + path}) {
    CAPTURE(url);
    const auto ranks = fork_ranks(3, [&](int r) {
      ::setenv("RANK", std::to_string(r).c_str(), 1);
      ::setenv("WORLD_SIZE", "3", 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", port.c_str(), 1);
      const std::size_t before = open_descriptors();
      const InitOptions options = url == "env://" ? InitOptions{} : InitOptions{.rank = r, .size = 3};
      for (int again = 0; again < 2; ++again) {  // the same place, once the first group is gone
        const auto group = init_process_group("native", url, options);
        expect(group->rank() == r && group->size() == 3, "it is who it said");
        expect(sum_over(*group) == 7, "the sum is right");
        const auto values = group->allocate<double>(100);
        std::iota(values.begin(), values.end(), r);
        group->all_reduce(values)->wait();
        expect(values[1] == 6, "the sum in place is right");
      }
      expect(open_descriptors() == before, "no descriptor is left open");
    });
    CHECK(exits_of(ranks) == std::vector{0, 0, 0});
    CHECK(std::filesystem::is_empty(folder.path()));
  }
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("several groups of subsets live at once, in the order of their ranks") {
  const auto thrown = run_ranks(4, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto even = world->new_group({2, 0});
    const auto odd = world->new_group({1, 3});
    const auto three = world->new_group({3, 1, 2});
    const auto mine = world->rank() % 2 == 0 ? even : odd;
    expect((even == nullptr) == (world->rank() % 2 == 1), "who is not in the list gets null");
    expect((three == nullptr) == (world->rank() == 0), "who is not in the list gets null");
    expect(mine->size() == 2 && mine->rank() == world->rank() / 2, "ranks are in ascending order");
    expect(mine->generation() != world->generation(), "every group has its generation");
    for (int i = 0; i < 3; ++i) {
      expect(sum_over(*mine) == 3, "the sum of a subset");
      if (three) expect(sum_over(*three) == 7, "the sum of another");
      expect(sum_over(*world) == 15, "the sum of all");
    }
    if (three) {  // a group of a group's ranks
      const auto pair = three->new_group({0, 2});
      expect((pair == nullptr) == (three->rank() == 1), "ranks are those of the parent");
      if (pair) expect(sum_over(*pair) == 3, "the sum of a subset of a subset");
    }
    if (odd) odd->abort("only this one");
    expect(sum_over(*world) == 15, "an abort is of one group");
  });
  for (const auto& what : thrown) CHECK(what.empty());
}

TEST_CASE("a group outlives the one that it was made of") {
  const auto thrown = run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    auto part = world->new_group({1, 2});
    world.reset();
    if (part) expect(sum_over(*part) == 3, "the sum");
  });
  for (const auto& what : thrown) CHECK(what.empty());
}

TEST_CASE("what is in flight moves while its rank forms a group") {
  // Was: a rank that had launched a sum and called new_group moved it no more, and one that waited for the
  // sum before it called new_group waited until the timeout.
  const auto thrown = run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto pair = world->new_group({1, 2});
    std::vector<float> sums(5000, 1), pairs(5000, 1);
    auto sum = world->all_reduce(sums);
    const auto other = pair ? pair->all_reduce(pairs) : sum;
    if (world->rank() == 2) sum->wait();
    if (world->rank() == 1) other->wait();
    const auto again = world->new_group({0, 1, 2});
    sum->wait();
    other->wait();
    expect(sums[4999] == 3 && (!pair || pairs[4999] == 2) && sum_over(*again) == 7, "the sums are right");
  });
  for (const auto& what : thrown) CHECK(what == "");
}

TEST_CASE("lists of ranks that make no sense are errors; different lists are found out") {
  const auto thrown = run_ranks(
      3,
      [](const std::shared_ptr<ProcessGroup>& world) {
        for (const auto& list : {std::vector<int>{}, {0, 3}, {-1}, {1, 1}}) {
          try {
            (void)world->new_group(list);
            expect(false, "refused");
          } catch (const BadConfig&) {
          }
        }
        expect(sum_over(*world) == 7, "nobody is out of step");
        (void)world->new_group(world->rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2});
      },
      {.timeout = 2s});
  for (const auto& what : thrown)
    CHECK_THAT(what, Catch::Contains("called it with") && Catch::Contains("give every rank the same list"));
}

TEST_CASE("a list that one rank alone gets wrong does not put it out of step") {
  const auto thrown =
      run_ranks(2,
                [](const std::shared_ptr<ProcessGroup>& world) {
                  if (world->rank() == 0) {
                    (void)world->new_group({0});
                  } else {
                    CHECK_THROWS_AS(world->new_group({7}), BadConfig);
                  }
                  expect(sum_over(*world->new_group({0, 1})) == 3, "the next group is of both");
                },
                {.timeout = 5s});
  for (const auto& what : thrown) CHECK(what == "");
}

/// Rank 0 made its group of one at once, and rank 1 read past the end of what a single rank had said.
TEST_CASE("different lists on two ranks are an error that has both, and nobody gets a half group") {
  const auto thrown = run_ranks(
      2,
      [](const std::shared_ptr<ProcessGroup>& world) {
        const auto mine = world->new_group(world->rank() == 0 ? std::vector<int>{0} : std::vector<int>{0, 1});
        expect(world->rank() == 0 && mine->size() == 1, "the group of one is whole");
      },
      {.timeout = 5s});
  // Who comes second is told, or waits for one that has its group and leaves.
  const std::string& told = thrown[0].empty() ? thrown[1] : thrown[0];
  CHECK_THAT(told,
             Catch::Contains("called it with") || Catch::Contains("missing") || Catch::Contains("left"));
  CHECK_FALSE(thrown[1].empty());
}

TEST_CASE("errors name their group") {
  const auto thrown = run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto part = world->new_group({0, 1});
    part->abort("enough");
    try {
      part->barrier()->wait();
      expect(false, "it was aborted");
    } catch (const CollectiveAborted& e) {
      const std::string what = e.what();
      expect(what.find("the process group 'default/0' was aborted: enough") != std::string::npos, what);
    }
    world->abort("all of it");
    world->barrier()->wait();
  });
  for (const auto& what : thrown)
    CHECK_THAT(what, Catch::Contains("the process group 'default' was aborted: all of it"));
}

TEST_CASE("an option that the backend would ignore is refused") {
  const auto refused = [](const char* backend, InitOptions options, const std::string& why) {
    options.rank = 0;
    options.size = 1;
    CHECK_THROWS_WITH(init_process_group(backend, "tcp://127.0.0.1:1", options), Catch::Contains(why));
  };
  // Asked for encryption, the ranks of gloo and nccl talked in the clear.
  for (const char* backend : {"nccl", "gloo", "mpi"}) {
    refused(backend, {.encrypt_data_plane = true},
            std::string("the backend ") + backend + " has no encrypt_data_plane");
  }
  for (const char* backend : {"native", "gloo", "mpi"}) {
    refused(backend, {.device = 0}, std::string("the backend ") + backend + " has no device");
    refused(backend, {.share_gpu = true}, "leave it out, or use the backend nccl");
    refused(backend, {.compare_calls = true},
            std::string("the backend ") + backend + " has no compare_calls");
  }
}

/// The others waited for the whole timeout, five minutes by default, for a rank that would never come.
TEST_CASE("a rank with another size of the job ends the wait of the others at once") {
  set_log_level(LogLevel::kError);
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  const auto nothing = [](const std::shared_ptr<ProcessGroup>&) {};
  std::vector<std::string> thrown;
  std::thread others([&] { thrown = run_at(url, 3, {0, 1}, nothing, {.timeout = 60s, .key = kJobKey}); });
  const MonotonicClock clock;
  const Instant begun = clock.now();
  const auto odd = run_at(url, 4, {2}, nothing, {.timeout = 60s, .key = kJobKey});
  others.join();
  CHECK(clock.now() - begun < 50s);
  CHECK_THAT(odd[0], Catch::Contains("rank 0 has another size of the job than the 4 of rank 2"));
  for (const auto& what : thrown)
    CHECK_THAT(what, Catch::Contains("rank 2") && Catch::Contains("size is 4 and not 3"));
}

/// The cause was in rank 0's log alone.
TEST_CASE("a rank that is missing because its key is wrong: the others are told") {
  set_log_level(LogLevel::kError);
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  const auto nothing = [](const std::shared_ptr<ProcessGroup>&) {};
  std::vector<std::string> thrown;
  std::thread others([&] { thrown = run_at(url, 3, {0, 1}, nothing, {.timeout = 2s, .key = kJobKey}); });
  const auto odd = run_at(url, 3, {2}, nothing, {.timeout = 60s, .key = std::string(64, '8')});
  others.join();
  CHECK_THAT(odd[0], Catch::Contains("another job key"));
  for (const auto& what : thrown)
    CHECK_THAT(what, Catch::Contains("rank 2 of 3 is missing") && Catch::Contains("turned away") &&
                         Catch::Contains("as one with another key does"));
}

/// Once: a group was aborted under the lock that its end takes.
TEST_CASE("an abort on a death may end another group of the same ranks") {
  const test::TempFolder folder;
  register_backend("fake", make_fake);
  const auto ranks = fork_ranks(2, [&](int r) {
    ::alarm(30);
    const auto world =
        init_process_group("fake", "file://" + (folder / "meet"), {.rank = r, .size = 2, .timeout = 20s});
    auto other = world->new_group({0, 1});
    const std::weak_ptr<ProcessGroup> watched = other;
    auto& fake = dynamic_cast<Fake&>(*world);
    fake.on_stop = [other = std::move(other)]() mutable { other.reset(); };
    if (r == 1) dies_without_leaving(folder, {"prepared"});
    std::ofstream(folder / "prepared").flush();
    test::yield_until([&] { return watched.expired(); });
  });
  CHECK(exits_of(ranks) == std::vector{0, 0});
}

/// The thread that hears of deaths ended the last group and then waited for itself.
TEST_CASE("what an abort calls may end the last group, and may not form one") {
  const test::TempFolder folder;
  register_backend("fake", make_fake);
  const auto ranks = fork_ranks(3, [&](int r) {
    ::alarm(30);
    std::shared_ptr<ProcessGroup> world =
        init_process_group("fake", "file://" + (folder / "meet"), {.rank = r, .size = 3, .timeout = 20s});
    auto& fake = dynamic_cast<Fake&>(*world);
    if (r == 2) dies_without_leaving(folder, {"prepared 0", "prepared 1"});
    std::atomic<bool> over{false};
    fake.on_stop = [&] {
      try {
        (void)world->new_group({0, 1});
        expect(false, "refused");
      } catch (const BadConfig& e) {
        expect(std::string(e.what()).find("form groups in another thread") != std::string::npos, e.what());
      }
      world.reset();
      over = true;
    };
    std::ofstream(folder / ("prepared " + std::to_string(r))).flush();
    test::yield_until([&] { return over.load(); });
  });
  CHECK(exits_of(ranks) == std::vector{0, 0, 0});
}

TEST_CASE("a group that init_process_group did not make says so") {
  run(1, {}, [](ProcessGroup& group) {
    CHECK_THROWS_WITH(group.new_group({0}), Catch::Contains("was not made by init_process_group"));
    CHECK_THROWS_WITH(group.rebuild(), Catch::Contains("was not made by init_process_group"));
  });
}

TEST_CASE("the ranks that are missing are listed, on every rank that is there") {
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  const auto thrown = run_at(url, 5, {0, 2}, [](const std::shared_ptr<ProcessGroup>&) {}, {.timeout = 2s});
  for (const auto& what : thrown) {
    CHECK_THAT(what, Catch::Contains("cannot initialise the process group 'default'") &&
                         Catch::Contains("ranks 1, 3, 4 of 5 are missing after 2 s"));
  }
  // Rank 0 stayed for 2 s more, for ranks that had not come by then.
  std::atomic<bool> late{false};
  std::thread later([&] { std::this_thread::sleep_for(1800ms), late = true; });
  const auto zero = run_at(url, 2, {0}, [](const std::shared_ptr<ProcessGroup>&) {}, {.timeout = 100ms});
  CHECK_THAT(zero[0], Catch::Contains("rank 1 of 2 is missing after 0.1 s"));
  CHECK_FALSE(late);
  later.join();
  const auto alone = run_at(url, 2, {1}, [](const std::shared_ptr<ProcessGroup>&) {}, {.timeout = 100ms});
  CHECK_THAT(alone[0], Catch::Contains("rank 0 of 2 is missing at " + url));
}

TEST_CASE("two processes with one rank and another key are found out at once") {
  set_log_level(LogLevel::kError);
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  register_backend("fake", make_fake);
  std::vector<std::string> thrown;
  std::thread zero([&] {
    const auto nothing = [](const std::shared_ptr<ProcessGroup>&) {};
    thrown = run_at(url, 3, {0}, nothing, {.timeout = 60s, .key = kJobKey}, "fake");
  });
  const auto refused = [&](const InitOptions& options) {
    std::string what;
    try {
      init_process_group("fake", url, options);
    } catch (const Error& e) {
      what = e.what();
    }
    return what;
  };
  CHECK_THAT(refused({.rank = 1, .size = 3, .timeout = 5s, .key = std::string(64, '8'), .name = "a"}),
             Catch::Contains("another job key") && Catch::Contains("TROUPE_JOB_KEY"));
  // The first rank 1 is in, by hand.
  const std::shared_ptr<StoreClient> first =
      StoreClient::connect({.at = parse_endpoint(url.substr(6)).value(),
                            .key = parse_job_key(kJobKey, "the test").value(),
                            .rank = 1,
                            .world_size = 3})
          .value();
  CHECK(first->join("pid of the first").status == StoreStatus::kOk);
  CHECK_THAT(refused({.rank = 1, .size = 3, .timeout = 60s, .key = kJobKey, .name = "a"}),
             Catch::Contains("two processes with rank 1: pid of the first was first"));
  CHECK_THAT(refused({.rank = 0, .size = 3, .timeout = 1s, .key = kJobKey, .name = "a"}),
             Catch::Contains("rank 0 cannot serve the store") && Catch::Contains("in use"));
  CHECK_THAT(refused({.rank = 0, .size = 3, .timeout = 1s, .key = kJobKey}),
             Catch::Contains("rank 0 has a group of this name in this process"));
  CHECK_THAT(refused({.rank = 1, .size = 3, .timeout = 1s, .key = kJobKey, .name = "a\nb"}),
             Catch::Contains("cannot initialise a process group: its name has a control character"));
  // Rank 2 comes: none of these got in the way.
  std::thread one([&] {
    GroupFormation formation(first, kWorldPrefix, "no group");
    (void)formation.enter({.ranks = {0, 1, 2}, .value = "\n\nhere\n127.0.0.1:1"}, 60s);
    formation.ready(60s);
  });
  CHECK(refused({.rank = 2, .size = 3, .timeout = 60s, .data_bytes = 1 << 20, .key = kJobKey}).empty());
  one.join();
  first->leave(60s);
  zero.join();
  for (const auto& what : thrown) CHECK(what.empty());
}

TEST_CASE("what ranks of different hosts send each other is encrypted where it is asked for") {
  const std::vector<std::string> hosts = {"a", "a", "b", "b", "c"};
  const auto body = [](const std::shared_ptr<ProcessGroup>& group) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{300'000}}) {
      std::vector<float> value(count, static_cast<float>(group->rank()));
      group->all_reduce(value)->wait();
      if (value.front() != 10 || value.back() != 10) throw std::runtime_error("wrong sum");
      if (group->rank() == 0) group->send(std::span<const float>(value), 3)->wait();
      if (group->rank() == 3) group->recv(std::span(value), 0)->wait();
    }
    group->barrier()->wait();
  };
  for (const auto& what : run_ranks(5, body, {.timeout = 60s, .encrypt_data_plane = true}, "native", hosts))
    CHECK(what.empty());
}

TEST_CASE("bad options, addresses and paths are errors that say what to do") {
  const test::TempFolder folder;
  const auto refused = [](const std::string& backend, const std::string& url, const InitOptions& options) {
    try {
      init_process_group(backend, url, options);
      return std::string();
    } catch (const Error& e) {
      CHECK_FALSE(e.info().todo.empty());
      return std::string(e.what());
    }
  };
  const InitOptions one{.rank = 0, .size = 1, .timeout = 20s};
  CHECK_THAT(refused("nccl-of-tomorrow", "tcp://127.0.0.1:1", one),
             Catch::Contains("no backend 'nccl-of-tomorrow'") && Catch::Contains("native"));
  CHECK_THAT(refused("native", "tcp://127.0.0.1:1", {.rank = 2, .size = 2}), Catch::Contains("rank 2 of 2"));
  CHECK_THAT(refused("native", "tcp://0.0.0.0:29999", one),
             Catch::Contains("without a key") && Catch::Contains("openssl rand -hex 32"));
  CHECK_THAT(refused("native", "tcp://10.1.2.3:29999", {.rank = 1, .size = 2}),
             Catch::Contains("without a key"));
  CHECK_THAT(refused("native", "tcp://127.0.0.1:1",
                     {.rank = 0, .size = 1, .timeout = 20s, .host = std::string(5000, 'h')}),
             Catch::Contains("5000 bytes"));
  CHECK_THAT(refused("native", "tcp://no-such-host.invalid:29999", one),
             Catch::Contains("cannot find the host"));
  CHECK_THAT(refused("native", "tcp://203.0.113.1:29999", {.rank = 0, .size = 1, .key = kJobKey}),
             Catch::Contains("cannot serve the store"));
  CHECK_THAT(refused("native", "file://" + (folder / "no/such"), one), Catch::Contains("cannot write '"));
  CHECK_THAT(refused("native", "file://" + (folder / "x"), {.rank = 0, .size = 1, .key = "short"}),
             Catch::Contains("64 hexadecimal digits"));
  CHECK_THAT(refused("native", "file://" + (folder / "x"), {.rank = 0, .size = 1, .timeout = 0s}),
             Catch::Contains("timeout"));
  const DataListener taken = DataListener::bind({"127.0.0.1", 0}).value();
  CHECK_THAT(refused("native", "tcp://" + to_string(taken.endpoint()), one), Catch::Contains("in use"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a file that is no note is refused by its path, on every rank") {
  const test::TempFolder folder;
  const std::string path = folder / "letter";
  std::ofstream(path) << "Dear reader";
  std::filesystem::permissions(path,
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const auto thrown = run_at("file://" + path, 2, {0, 1}, [](const std::shared_ptr<ProcessGroup>&) {});
  for (const auto& what : thrown) CHECK_THAT(what, Catch::Contains("cannot meet at '" + path + "'"));
}

TEST_CASE("a stale note is overwritten, and ranks that read it wait for the new one") {
  const test::TempFolder folder;
  const std::string path = folder / "meet";
  // A job that was killed: its key is not ours, and somebody else has its port now.
  set_log_level(LogLevel::kError);
  const auto other = StoreServer::start(DataListener::bind({"127.0.0.1", 0}).value(),
                                        {.key = random_job_key(), .world_size = 2})
                         .value();
  std::ofstream(path) << to_text(MeetingNote{.at = other->endpoint(), .key = random_job_key()});
  std::filesystem::permissions(path,
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const auto thrown = run_at("file://" + path, 2, {1, 0}, [](const std::shared_ptr<ProcessGroup>& group) {
    expect(sum_over(*group) == 3, "the sum");
  });
  for (const auto& what : thrown) CHECK(what.empty());
  CHECK(std::filesystem::is_empty(folder.path()));
}

// A child that was forked, for a program or by mistake, ended its copy of a group: the parent's peers were
// told that the rank had left, and the child waited for a thread that it does not have.
TEST_CASE("a forked child neither uses nor ends its parent's group") {
  const auto thrown = run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    auto group = world->new_group({0, 1});
    if (world->rank() == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(20);
        std::string why;
        try {
          group->abort("the child says so");
        } catch (const BadConfig&) {
          try {
            group->barrier();
          } catch (const BadConfig& error) {
            why = error.what();
          }
        }
        const std::function<void()> calls[] = {[&] { (void)world->new_group({1}); },
                                               [&] { (void)world->rebuild(); },
                                               [&] { (void)group->allocate(1, DType::kFloat32); },
                                               [&] { (void)group->allocate_tree(1, DType::kFloat32); }};
        for (const auto& call : calls) {
          try {
            call();
            why = "it was not refused";
          } catch (const BadConfig&) {
          }
        }
        group.reset();
        ::_exit(why.find("a forked process used the process group of its parent") == 0 ? 0 : 1);
      }
      int how = -1;
      expect(::waitpid(child, &how, 0) == child && how == 0, "the child is refused, and ends");
    }
    for (int i = 0; i < 3; ++i) expect(sum_over(*group) == 3, "the sum");
    expect(sum_over(*world->new_group({0, 1})) == 3, "the store answers the parent");
  });
  for (const auto& what : thrown) CHECK(what.empty());
}

TEST_CASE("the thread that moves a group between hosts adds as the thread that launches does") {
  const auto thrown = run_ranks(2,
                                [](const std::shared_ptr<ProcessGroup>& world) {
                                  std::fesetround(FE_UPWARD);  // after the group's thread was started
                                  for (int i = 0; i < 20; ++i) {
                                    std::vector<float> values(100, world->rank() == 0 ? 1.0F : 0x1p-30F);
                                    const auto work = world->all_reduce(values, ReduceOp::kSum);
                                    std::this_thread::sleep_for(5ms);  // it does the sum meanwhile
                                    work->wait();
                                    for (const float value : values)
                                      expect(value > 1, "the sum is rounded up");
                                  }
                                },
                                kPatient, "native", {"first", "second"});
  for (const auto& what : thrown) CHECK(what.empty());
}

TEST_CASE("an empty file in which ranks are to meet may be anybody's until rank 0 has it") {
  const test::TempFolder folder;
  const std::string path = folder / "meet";
  std::ofstream(path).flush();
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  const auto note = MeetingFile::read(path);
  REQUIRE_FALSE(note.ok());
  CHECK(note.error().code == ErrorCode::kUnavailable);
}

TEST_CASE("ranks that share no memory connect, with the addresses that the store told them") {
  const auto thrown =
      run_ranks(4,
                [](const std::shared_ptr<ProcessGroup>& world) {
                  const auto across = world->new_group({0, 3});
                  const auto three = world->new_group({1, 2, 3});
                  for (int i = 0; i < 3; ++i) {
                    expect(sum_over(*world) == 15, "the sum of all");
                    if (across) expect(sum_over(*across) == 3, "the sum of two machines with one rank each");
                    if (three) expect(sum_over(*three) == 7, "the sum of three");
                  }
                },
                kPatient, "native", {"first", "first", "second", "second"});
  for (const auto& what : thrown) CHECK(what.empty());
}

/// Looks at the store of a job from outside: how many keys it has but those it was told of.
std::int64_t keys_left(const std::string& url, int rank, int size) {
  const auto store = StoreClient::connect({.at = parse_endpoint(url.substr(6)).value(),
                                           .key = parse_job_key(kJobKey, "the test").value(),
                                           .rank = rank,
                                           .world_size = size})
                         .value();
  // What was posted when a group was formed has been done by now: a store serves in the order of arrival.
  std::int64_t left = 0;
  for (char first = ' '; first <= '~'; ++first) left += store->erase(std::string(1, first));
  return left;
}

// A job that rebuilt often filled the store: at first nothing was ever taken away, then the list of those who
// went on stayed, and what an attempt left that failed.
TEST_CASE("a thousand groups and generations leave nothing at the store") {
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  register_backend("native, which says much", [](const BackendContext& c) {
    for (int i = 0; i < 3; ++i) c.store.set(std::to_string(c.rank) + "/" + std::to_string(i), "something");
    return join_native_group(c);
  });
  constexpr int kRounds = 500;
  std::atomic<int> done{0};
  std::atomic<std::int64_t> left{-1};
  const auto thrown = run_at(
      url, 2, {0, 1},
      [&](const std::shared_ptr<ProcessGroup>& world) {
        auto group = world;
        for (int i = 0; i < kRounds; ++i) {
          expect(group->new_group({0, 1})->size() == 2, "a group");
          if (group->rank() == 1) {
            try {
              (void)group->new_group({1, 1});
            } catch (const BadConfig&) {
            }
          }
          group = group->rebuild();
        }
        group = group->rebuild();
        ++done;
        if (group->rank() == 0) {
          test::yield_until([&] { return done >= 2; });
          left = keys_left(url, 1, 2);
          ++done;
        }
        test::yield_until([&] { return done >= 3; });
      },
      {.timeout = 60s, .key = kJobKey}, "native, which says much");
  for (const auto& what : thrown) CHECK(what.empty());
  CHECK(left == 0);
}

TEST_CASE("a backend of somebody else gets a store of its own for each group") {
  register_backend("meeting", [](const BackendContext& c) {
    c.store.set(std::to_string(c.rank), "here");
    for (int r = 0; r < c.size; ++r) (void)c.store.get(std::to_string(r), c.left());
    return make_fake(c);
  });
  const auto thrown = run_ranks(
      2,
      [](const std::shared_ptr<ProcessGroup>& group) {
        expect(group->backend() == "fake", "the backend that was asked for");
        expect(group->new_group({0, 1})->size() == 2, "for new groups, too");
      },
      kPatient, "meeting");
  for (const auto& what : thrown) CHECK(what.empty());

  // A rank whose backend fails: the others do not wait for it.
  register_backend("broken", [](const BackendContext& c) -> std::shared_ptr<ProcessGroup> {
    if (c.rank == 1) throw std::runtime_error("no such device");
    (void)c.store.get("never", c.left());
    return nullptr;
  });
  const auto broken = run_ranks(
      2, [](const std::shared_ptr<ProcessGroup>&) {}, kPatient, "broken");
  CHECK_THAT(broken[0], Catch::Contains("rank 1: no such device"));
  CHECK(broken[1] == "no such device");
}
