/// Several groups of one process on one host: what is launched in one moves while a thread waits in another.

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/collectives/ranks.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

constexpr Duration kTimeout = std::chrono::seconds(20);

Layout numbered(std::uint32_t generation) {
  return {.timeout = kTimeout, .generation = {1, generation}};
}

std::string check_sums(const std::vector<float>& sums, int size) {
  const auto wanted = static_cast<float>(size * (size + 1) / 2);
  for (const float sum : sums) {
    if (sum != wanted) return "a sum is " + std::to_string(sum);
  }
  return "right";
}

std::vector<float> values_of(const ProcessGroup& group, std::size_t count) {
  return std::vector<float>(count, static_cast<float>(group.rank() + 1));
}

void await(const std::atomic<bool>& flag) {
  test::yield_until([&] { return flag.load(); });
}

}  // namespace

TEST_CASE("ranks of one host wait for two groups in any order") {
  // Was: an operation moved in calls of its own group alone, so ranks that waited for two groups in different
  // orders waited for each other until the timeout.
  for (const int size : {2, 3, 5}) {
    for (const std::size_t count : {std::size_t{5'000}, std::size_t{700'000}}) {
      auto others = options_of(size, numbered(2));
      const auto said = run_forked(options_of(size, numbered(1)), [&](std::shared_ptr<ProcessGroup> one) {
        const auto other = make_native_group(std::move(others[static_cast<std::size_t>(one->rank())]));
        auto first = values_of(*one, 5'000), second = values_of(*one, count);
        for (int lap = 0; lap < 3; ++lap) {
          first.assign(first.size(), static_cast<float>(one->rank() + 1));
          second.assign(second.size(), static_cast<float>(one->rank() + 1));
          const auto a = one->all_reduce(first), b = other->all_reduce(second);
          (one->rank() % 2 == 0 ? a : b)->wait();
          a->wait();
          b->wait();
        }
        return check_sums(first, size) + ", " + check_sums(second, size);
      });
      CAPTURE(size, count);
      for (const auto& what : said) CHECK(what == "right, right");
    }
  }
}

TEST_CASE("ranks of one host wait for groups of different sizes in any order, by messages too") {
  // Three of five ranks are in a second group, and the last of these in a third with rank 0.
  auto three = options_of(3, numbered(2)), pair = options_of(2, numbered(3));
  const auto said = run_forked(options_of(5, numbered(1)), [&](std::shared_ptr<ProcessGroup> all) {
    const int rank = all->rank();
    std::shared_ptr<ProcessGroup> part, two;
    if (rank >= 2) part = make_native_group(std::move(three[static_cast<std::size_t>(rank - 2)]));
    if (rank % 4 == 0) two = make_native_group(std::move(pair[static_cast<std::size_t>(rank / 4)]));
    auto sums = values_of(*all, 5'000), parts = part ? values_of(*part, 200'000) : std::vector<float>();
    std::vector<float> sent(100'000, 7), got(100'000);
    std::vector<std::shared_ptr<Work>> works{all->all_reduce(sums)};
    if (part) works.push_back(part->all_reduce(parts));
    if (two) {
      works.push_back(two->send(sent, 1 - two->rank()));
      works.push_back(two->recv(got, 1 - two->rank()));
    }
    if (rank >= 3) std::reverse(works.begin(), works.end());
    for (const auto& work : works) work->wait();
    std::string what = check_sums(sums, 5);
    if (part) what += check_sums(parts, 3);
    return two && got != sent ? "a wrong message" : what;
  });
  CHECK(said == std::vector<std::string>{"right", "right", "rightright", "rightright", "rightright"});
}

TEST_CASE("groups come and go, good and aborted, while a thread waits in another") {
  std::atomic<bool> over{false};
  std::atomic<std::uint32_t> wrong{0};
  std::thread pairs([&] {
    for (std::uint32_t i = 0; i < 150; ++i) {
      std::vector<float> kept[2][2];  // whoever waits in another group is at them until theirs is gone
      run_threads(options_of(2, numbered(10 + i)), [&](ProcessGroup& group) {
        auto& [sums, more] = kept[group.rank()];
        sums = more = values_of(group, 40'000);
        const auto first = group.all_reduce(sums);
        if (i % 3 != 0) group.barrier()->wait();
        if (i % 3 == 2) group.all_reduce(more);  // is in flight when the group is destroyed
        if (i % 3 == 1) {
          first->wait();
          wrong += check_sums(sums, 2) == "right" ? 0 : 1;
        }
      });
    }
    over = true;
  });
  run(3, numbered(1), [&](ProcessGroup& group) {
    auto sums = values_of(group, 5'000);
    if (group.rank() == 2) await(over);
    group.all_reduce(sums)->wait();
    wrong += check_sums(sums, 3) == "right" ? 0 : 1;
  });
  pairs.join();
  CHECK(wrong == 0);
}

TEST_CASE("two threads of each rank wait in a group each") {
  auto others = options_of(5, numbered(2));
  const auto said = run_forked(options_of(5, numbered(1)), [&](std::shared_ptr<ProcessGroup> one) {
    const auto other = make_native_group(std::move(others[static_cast<std::size_t>(one->rank())]));
    const auto work = [](ProcessGroup& group, std::string& what) {
      try {
        for (int i = 0; i < 400 && (what.empty() || what == "right"); ++i) {
          auto sums = values_of(group, i % 3 == 0 ? 7 : 5'000);
          if (i % 4 == 1) group.broadcast(sums, i % 5)->wait();
          if (i % 4 == 2) group.barrier()->wait();
          sums = values_of(group, sums.size());
          group.all_reduce(sums)->wait();
          what = check_sums(sums, 5);
        }
      } catch (const std::exception& e) {
        what = e.what();
      }
    };
    std::string first, second;
    std::thread beside([&] { work(*other, second); });
    work(*one, first);
    beside.join();
    return first + ", " + second;
  });
  for (const auto& what : said) CHECK(what == "right, right");
}

TEST_CASE("a forked child waits in a group of its own beside those of its parent") {
  auto mine = options_of(2, numbered(1)), childs = options_of(2, numbered(2));
  const auto parent = make_native_group(std::move(mine[0]));
  std::vector<float> sums(5'000, 1);
  const auto work = parent->all_reduce(sums);  // in flight when the children are made
  const auto said = run_forked(std::move(childs), [&](std::shared_ptr<ProcessGroup> group) {
    auto values = values_of(*group, 5'000);
    group->all_reduce(values)->wait();
    return check_sums(values, 2);
  });
  CHECK(said == std::vector<std::string>{"right", "right"});
  CHECK(sums == std::vector<float>(5'000, 1));
}

TEST_CASE("within a host a progress thread moves what a rank that computes has launched") {
  // Was: the option was for groups of several hosts alone, and the others waited until the rank waited, too.
  for (const bool messages : {false, true}) {
    auto options = options_of(3, numbered(1));
    for (auto& o : options) o.progress_thread = true;
    std::atomic<int> done{0};
    const auto thrown = run_threads(std::move(options), [&](ProcessGroup& group) {
      auto sums = values_of(group, 300'000);
      std::vector<float> small(8'000, 5);  // of which the ring has room for few
      for (int lap = 0; lap < 2; ++lap) {
        std::vector<std::shared_ptr<Work>> works;
        if (!messages) works.push_back(group.all_reduce(sums));
        for (int i = 0; messages && group.rank() != 0 && i < 32; ++i) works.push_back(group.send(small, 0));
        if (group.rank() != 0) {
          const auto counts = std::shared_ptr<void>(nullptr, [&](void*) { ++done; });  // if it throws, too
          for (const auto& work : works) work->wait();
        }
        test::yield_until([&] { return done >= 2 * (lap + 1); });  // rank 0 computes
        for (int i = 0; messages && group.rank() == 0 && i < 64; ++i)
          works.push_back(group.recv(small, 1 + i % 2));
        for (const auto& work : works) work->wait();
        group.barrier()->wait();
      }
    });
    for (const auto& what : thrown) CHECK(what == "");
  }
}
