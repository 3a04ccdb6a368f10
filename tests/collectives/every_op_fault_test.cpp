/// Real processes in every operation, one of which is killed or stopped in the middle.

#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "collectives/native/region.hpp"
#include "tests/collectives/every_op.hpp"
#include "tests/collectives/rendezvous_ranks.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

namespace {

constexpr OpKind kOperations[] = {
    OpKind::kAllReduceTree, OpKind::kAllReduce, OpKind::kReduce,    OpKind::kBroadcast,
    OpKind::kGather,        OpKind::kScatter,   OpKind::kAllGather, OpKind::kReduceScatter,
    OpKind::kAllToAll,      OpKind::kBarrier,   OpKind::kSend /* and receives, around the ring of ranks */};
constexpr std::size_t kCounts[] = {5, 200000};
constexpr int kRanks = 3;

/// The same operation again and again; roots take turns, so the one that fails is a root, too.
class Repeated {
 public:
  Repeated(ProcessGroup& group, OpKind kind, std::size_t count)
      : group_(group),
        spec_{.kind = kind, .count = count},
        input_(kRanks * count * sizeof(float)),
        output_(input_) {
    if (kind == OpKind::kAllReduceTree) tree_ = group.allocate_tree(count, DType::kFloat32);
  }

  void step() {
    spec_.root = (spec_.root + 1) % kRanks;
    if (spec_.kind == OpKind::kAllReduceTree) {
      group_.all_reduce_tree(tree_, ReduceOp::kSum)->wait();
    } else if (spec_.kind == OpKind::kSend) {
      const int rank = group_.rank();
      const auto sent = group_.send(buffer(input_), (rank + 1) % kRanks);
      const auto received = group_.recv(buffer(output_), (rank + kRanks - 1) % kRanks);
      received->wait();
      sent->wait();
    } else {
      call(group_, spec_, input_.data(), one_buffer(spec_) ? input_.data() : output_.data())->wait();
    }
  }

 private:
  Buffer buffer(Bytes& bytes) const { return {bytes.data(), spec_.count, DType::kFloat32, {}, nullptr}; }

  ProcessGroup& group_;
  OpSpec spec_;
  Bytes input_, output_;
  TreeBuffer tree_;
};

/// What the processes of one case count together.
struct Shared {
  std::atomic<int> steps{0};   ///< that the victim made
  std::atomic<int> thrown{0};  ///< survivors that have their error
};
class SharedWords {
 public:
  Shared* operator->() const { return reinterpret_cast<Shared*>(memory_.data()); }

 private:
  SharedMemory memory_ = SharedMemory::create("counts", sizeof(Shared), true).value();
};

/// Without a deadline of its own: ctest's is the deadline.
void wait_for(const std::atomic<int>& word, int value) {
  while (word.load() < value) std::this_thread::sleep_for(100us);
}

/// Repeats until it throws: the message.
std::string error_of(Repeated& repeated) {
  try {
    while (true) repeated.step();
  } catch (const CollectiveAborted& e) {
    return e.what();
  } catch (const Timeout& e) {
    return e.what();
  }
}

/// The ranks in the list "0, 1" that follows `words` in `text`.
std::set<int> names_in(const std::string& words, const std::string& text) {
  std::set<int> ranks;
  const auto at = text.find(words);
  if (at == std::string::npos) return ranks;
  std::istringstream list(text.substr(at + words.size()));
  for (int rank = 0; list >> rank;) {
    ranks.insert(rank);
    if (list.get() != ',') break;
  }
  return ranks;
}

float sum_of(ProcessGroup& group) {
  float one = 1;
  group.all_reduce(std::span(&one, 1))->wait();
  return one;
}

std::string called(OpKind kind) {
  return std::string(name_of(kind));
}

enum class Fault { kKill, kStop };

/// Three ranks of one machine that found each other by a store, as a program's own; the victim is one but
/// rank 0. The survivors get an error that says what it should, and form the next generation.
void fail_in(OpKind kind, std::size_t count, Fault fault, int victim) {
  const test::TempFolder folder;
  const SharedWords shared;
  const auto pids = fork_ranks(kRanks, [&](int rank) {
    const Duration limit = fault == Fault::kStop ? Duration(400ms) : Duration(60s);
    const InitOptions options{
        .rank = rank, .size = kRanks, .timeout = 60s, .operation_timeout = limit, .data_bytes = 4 << 20};
    auto group = init_process_group("native", "file://" + (folder / "meet"), options);
    Repeated repeated(*group, kind, count);
    if (rank == victim) {
      while (true) {
        repeated.step();
        ++shared->steps;
      }
    }
    const std::string why = error_of(repeated);
    ++shared->thrown;
    const auto has = [&](const std::string& part) { return why.find(part) != std::string::npos; };
    const std::string who = "rank " + std::to_string(victim);
    if (fault == Fault::kKill) {
      expect(has(who + " (pid") && has("died"), why);
    } else {
      // A message waits for its neighbour, which may itself wait for the one that was stopped.
      expect(has("no rank made progress for 0.4 s"), why);
      if (kind != OpKind::kSend) {
        expect(has(called(kind)), why);
        // On a busy machine the other survivor may be late as well: "waiting for rank 0, 1".
        expect(names_in("waiting for rank ", why).contains(victim) || has("furthest behind is " + who), why);
      }
    }
    group = group->rebuild();
    expect(group->size() == kRanks - 1, "who lives goes on");
    expect(sum_of(*group) == static_cast<float>(group->size()), "and the sum is right");
  });
  const pid_t loser = pids[static_cast<std::size_t>(victim)];
  wait_for(shared->steps, 20);
  ::kill(loser, fault == Fault::kKill ? SIGKILL : SIGSTOP);
  if (fault == Fault::kStop) {
    wait_for(shared->thrown, kRanks - 1);
    ::kill(loser, SIGKILL);
  }
  CHECK(exits_of(pids) == (victim == 1 ? std::vector{0, -SIGKILL, 0} : std::vector{0, 0, -SIGKILL}));
}

void fail_in_every_operation(Fault fault) {
  int victim = 1;
  for (const OpKind kind : kOperations) {
    for (const std::size_t count : kCounts) {
      CAPTURE(called(kind), count, victim);
      fail_in(kind, count, fault, victim);
      victim = 3 - victim;
    }
  }
}

}  // namespace

TEST_CASE(
    "kill -9 in the middle of every operation: the others learn who died, and form the next generation") {
  fail_in_every_operation(Fault::kKill);
}

TEST_CASE("a rank that is stopped in the middle of every operation is named by the timeout") {
  fail_in_every_operation(Fault::kStop);
}

TEST_CASE("kill -9 in the middle of every operation between machines") {
  for (const std::vector<std::vector<int>>& machines :
       {std::vector<std::vector<int>>{{0, 1}, {2}}, {{0}, {1, 2}}, {{0}, {1}, {2}}}) {
    for (const OpKind kind : kOperations) {
      for (const std::size_t count : kCounts) {
        CAPTURE(machines.size(), called(kind), count);
        const SharedWords shared;
        auto options = options_of(kRanks, {.nodes = machines, .data_bytes = 4 << 20});
        const auto region = options[2].region;  // the node keeps its region
        const auto pids = fork_ranks(kRanks, [&](int rank) {
          NativeGroupOptions mine = std::move(options[static_cast<std::size_t>(rank)]);
          options.clear();  // the other ranks' sockets are theirs alone
          const auto group = make_native_group(std::move(mine));
          Repeated repeated(*group, kind, count);
          if (rank == 2) {
            while (true) {
              repeated.step();
              ++shared->steps;
            }
          }
          const std::string why = error_of(repeated);
          expect(why.find("rank 2") != std::string::npos, why);
        });
        options.clear();
        wait_for(shared->steps, 20);
        ::kill(pids[2], SIGKILL);
        CHECK(exit_of(pids[2]) == -SIGKILL);
        // What the node of that machine does, which sees its processes end.
        abort_region(region->data(), "rank 2 was killed");
        CHECK(exit_of(pids[0]) == 0);
        CHECK(exit_of(pids[1]) == 0);
      }
    }
  }
}
