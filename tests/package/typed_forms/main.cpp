// Every typed form of the collectives on local variables: what a call leaves in one is what the caller reads,
// and what the caller wrote into one is what the call sends, whatever the compiler keeps in registers.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <troupe/collectives.hpp>
#include <vector>

using troupe::collectives::Op;
using troupe::collectives::ProcessGroup;
using troupe::collectives::ReduceOp;

namespace {

int failures = 0;

template <class T>
std::span<T> one(T& value) {
  return std::span<T>(&value, 1);
}

void check(bool good, const char* what) {
  if (good) return;
  std::printf("wrong: %s\n", what);
  ++failures;
}

void reductions(ProcessGroup& group, int me) {
  int sum = me + 1, at_root = me + 1, largest = 0;
  double product = me + 2;
  bool any = me == 1;
  std::array<float, 3> three{1.F, 2.F, static_cast<float>(me)};
  group.all_reduce(one(sum))->wait();
  group.all_reduce(one(product), ReduceOp::kProduct)->wait();
  group.all_reduce(one(any), ReduceOp::kMax)->wait();
  group.all_reduce(three)->wait();
  group.reduce(one(at_root), 0)->wait();
  std::array<int, 2> both{me, 10 + me};
  group.reduce_scatter(both, one(largest), ReduceOp::kMax)->wait();
  int part = 0;
  group.reduce_scatter(both, one(part), {1, 1})->wait();
  check(sum == 3 && product == 6 && any, "all_reduce");
  check(three[0] == 2 && three[1] == 4 && three[2] == 1, "all_reduce of an array");
  check(at_root == (me == 0 ? 3 : 2), "reduce");
  check(largest == (me == 0 ? 1 : 11) && part == (me == 0 ? 1 : 21), "reduce_scatter");
}

void moves(ProcessGroup& group, int me) {
  int sent = me == 0 ? 9 : 99;
  const int mine = me + 3;
  long part = 0;
  std::array<int, 2> all{}, at_root{}, uneven{};
  const std::array<long, 2> parts{5, 6};
  group.broadcast(one(sent), 0)->wait();
  group.all_gather(one(mine), all)->wait();
  group.gather(one(mine), at_root, 1)->wait();
  group.scatter(parts, one(part), 0)->wait();
  group.all_gather(one(mine), uneven, {1, 1})->wait();
  check(sent == 9, "broadcast");
  check(all[0] == 3 && all[1] == 4 && uneven[0] == 3 && uneven[1] == 4, "all_gather");
  check(at_root[0] == (me == 1 ? 3 : 0) && at_root[1] == (me == 1 ? 4 : 0), "gather");
  check(part == 5 + me, "scatter");
}

void exchanges(ProcessGroup& group, int me) {
  std::array<short, 2> given{static_cast<short>(10 * me), static_cast<short>(10 * me + 1)}, taken{},
      counted{};
  group.all_to_all(given, taken)->wait();
  group.all_to_all(given, {1, 1}, counted, {1, 1})->wait();
  check(taken[0] == me && taken[1] == 10 + me && counted == taken, "all_to_all");
  unsigned char mine = static_cast<unsigned char>(me + 40), theirs = 0;
  const auto sends = group.send(one(mine), 1 - me), receives = group.recv(one(theirs), 1 - me);
  receives->wait();
  sends->wait();
  check(theirs == 41 - me, "send and recv");
  mine = static_cast<unsigned char>(me + 50);
  std::vector<float> vector(5, static_cast<float>(me));
  group
      .batch({Op::send(troupe::collectives::buffer_of(one(mine)), 1 - me),
              Op::recv(troupe::collectives::buffer_of(one(theirs)), 1 - me),
              Op::all_reduce(troupe::collectives::buffer_of(std::span(vector)), ReduceOp::kSum)})
      ->wait();
  check(theirs == 51 - me && vector[4] == 1, "batch");
}

// What was written right before a call, in a loop that the compiler may unroll, is what goes.
void repeated(ProcessGroup& group, int me) {
  long total = 0;
  for (int i = 0; i < 50; ++i) {
    long value = i * (me + 1);
    group.all_reduce(one(value))->wait();
    total += value;
  }
  check(total == 3 * 49 * 50 / 2, "a variable of a loop");
}

int rank(int me, const std::string& meeting) {
  const auto group =
      troupe::collectives::init_process_group("native", "file://" + meeting, {.rank = me, .size = 2});
  for (const auto& forms : {reductions, moves, exchanges, repeated}) forms(*group, me);
  group->barrier()->wait();
  return failures;
}

}  // namespace

int main() {
  const auto meeting = std::filesystem::current_path() / "meeting";
  std::filesystem::remove(meeting);
  const pid_t other = ::fork();
  if (other == 0) ::_exit(rank(1, meeting.string()));
  const int mine = rank(0, meeting.string());
  int theirs = -1;
  ::waitpid(other, &theirs, 0);
  if (mine != 0 || theirs != 0) return 1;
  std::printf("right\n");
  return 0;
}
