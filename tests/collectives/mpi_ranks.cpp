// One rank of the tests of the backend mpi, started by mpirun. Argument: what to check. Exits with 1, and
// says why, when something is wrong.

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#if defined(TROUPE_HAS_MPI)
#include <mpi.h>
#endif

#include "collectives/mpi/mpi_group.hpp"
#include "runtime/core/error.hpp"
#include "tests/collectives/library_checks.hpp"
#include "tests/support/contains.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;
using troupe::test::contains;

namespace {

/// Says so, and holds the rank until all have: mpirun ends the others as soon as one leaves without
/// finalising.
void say_together(const std::string& what, ProcessGroup& all) {
  std::printf("%s\n", what.c_str());
  std::fflush(stdout);
  all.barrier()->wait();
}

void check_operations() {
  const auto group = make_mpi_group();
  require(group->backend() == "mpi", "another backend");
  const auto second = make_mpi_group();  // goes on beside the first
  check_library(*group);
  run_specs(*second, any_order_specs(second->size()), 5);
  if (group->size() == 1) return;
  const std::string text = thrown_by<BadConfig>([&] {
    const float value = 0;
    group->send(std::span(&value, 1), (group->rank() + 1) % group->size(), 0xffffffff);
  });
  require(contains(text, "mpi") && contains(text, "4294967295"), text);
}

void check_trees() {
  const int size = make_mpi_group()->size();
  for (const int leaves : {size, 5, 8}) {
    run_specs(*make_mpi_group({.leaves = deal_leaves(leaves, size)}), tree_specs(leaves, 2000, 3), 3);
  }
  const std::string text = thrown_by<BadConfig>([&] {
    make_mpi_group({.leaves = {{0, size + 1}, {size + 1, size + 2}}});
  });
  require(size == 2 || contains(text, "2 leaf intervals"), text);
  (void)thrown_by<BadConfig>([] { make_mpi_group({.timeout = 0s}); });
#if defined(TROUPE_HAS_MPI)
  const MPI_Comm none = MPI_COMM_NULL;
  (void)thrown_by<BadConfig>([&] { make_mpi_group({.communicator = &none}); });
#endif
}

/// A step that threw stayed queued, and the next launch took a step behind its last one.
void check_throwing_step() {
  const auto group = make_mpi_group();
  // More than MPI counts, of which the checks of the arguments know nothing: found when its step is begun.
  const std::size_t count = static_cast<std::size_t>(group->size()) << 31;
  void* at = ::mmap(nullptr, count, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(at != MAP_FAILED, "no address space");
  const std::string text = thrown_by<Error>(
      [&] { group->all_reduce({.data = at, .count = count, .dtype = DType::kInt8}, ReduceOp::kSum); });
  require(contains(text, "too large"), text);
  float value = 1;
  group->all_reduce(std::span(&value, 1))->wait();
  require(value == static_cast<float>(group->size()), "the group stays good");
  ::munmap(at, count);
}

#if defined(TROUPE_HAS_MPI)
/// A program that has MPI already, without its threads.
void check_level() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SINGLE, &provided);
  const std::string text = thrown_by<BadConfig>([] { (void)make_mpi_group(); });
  require(contains(text, "MPI_THREAD_MULTIPLE"), text);
  MPI_Finalize();
}
#else
void check_level() {}
#endif

/// The last rank does not come; the others have a message on the way for each other.
void check_timeout() {
  const auto all = make_mpi_group();
  const auto group = make_mpi_group({.timeout = 300ms});
  std::vector<float> values(5);
  if (group->rank() != group->size() - 1) {
    const auto work = group->all_reduce(std::span(values));
    const std::string text = thrown_by<Timeout>([&] { work->wait(); });
    const std::string rank = "rank " + std::to_string(group->rank());
    require(contains(text, rank + ": all_reduce(sum, 5 x f32) #1") && contains(text, "0.3 s"), text);
    require(contains(thrown_by<Timeout>([&] { work->wait(); }), rank),
            "another exception at the second wait");
    require(work->is_completed() && work->exception() != nullptr, "not complete");
    (void)thrown_by<CollectiveAborted>([&] { group->barrier(); });
    require(contains(group->abort_reason(), rank), group->abort_reason());
  } else {
    // Its own operation finds nobody either, as MPI tells it nothing.
    (void)thrown_by<Timeout>([&] { group->recv(std::span(values), 0)->wait(); });
  }
  say_together("timed out as it should", *all);
}

/// More arrives than the receiver takes: MPI returns that, where by default it would end all processes.
void check_mismatch() {
  const auto all = make_mpi_group();
  const auto moves = make_mpi_group({.timeout = 2s}), talks = make_mpi_group({.timeout = 2s});
  std::vector<float> values(all->rank() == 0 ? 100 : 60);
  if (all->rank() == 0) {
    // It may be through before the others find out.
    try {
      moves->broadcast(std::span(values), 0)->wait();
      for (int r = 1; r < all->size(); ++r) talks->send(std::span(values), r)->wait();
    } catch (const Error&) {
    }
  } else {
    const std::string text =
        thrown_by<CollectiveAborted>([&] { moves->broadcast(std::span(values), 0)->wait(); });
    require(contains(text, "broadcast(60 x f32, root 0) #1 failed") && contains(text, "MPI_ERR_TRUNCATE"),
            text);
    const std::string told = thrown_by<CollectiveAborted>([&] { talks->recv(std::span(values), 0)->wait(); });
    require(contains(told, "recv(60 x f32, from 0, tag 0) failed"), told);
  }
  say_together("returned as it should", *all);
}

void check_abort() {
  const auto all = make_mpi_group();
  const auto group = make_mpi_group();
  std::vector<float> values(5);
  const auto work = group->recv(std::span(values), (group->rank() + 1) % group->size(), 9);
  std::thread other([&] {
    group->abort("enough");
    group->abort("more than enough");
  });
  const std::string text = thrown_by<CollectiveAborted>([&] { work->wait(); });
  other.join();
  require(contains(text, "enough") && group->abort_reason() == "enough", text);
  (void)thrown_by<CollectiveAborted>([&] { group->barrier(); });
  say_together("aborted as it should", *all);
}

/// What was given up kept pointing at memory that its owner had freed.
void check_quiet() {
  const auto all = make_mpi_group();
  const auto group = make_mpi_group();
  const bool is_last = group->rank() == group->size() - 1;
  group->await_quiet();  // of a good group: at once
  std::vector<float> values(5), parts(5 * static_cast<std::size_t>(group->size()));
  const auto never = group->recv(std::span(values), (group->rank() + 1) % group->size(), 9);
  const auto work = group->all_gather(std::span(values), std::span(parts));
  (void)work->is_completed();
  group->abort("enough");
  group->await_quiet();  // all have come to the gather, and the receive is cancelled
  (void)thrown_by<CollectiveAborted>([&] { never->wait(); });
  all->barrier()->wait();

  const auto other = make_mpi_group({.timeout = 300ms});
  std::shared_ptr<Work> alone;
  if (!is_last) {
    alone = other->all_gather(std::span(values), std::span(parts));
    (void)alone->is_completed();
  }
  other->abort("enough");
  if (is_last) {
    other->await_quiet();
  } else {
    const std::string text = thrown_by<Timeout>([&] { other->await_quiet(); });
    require(contains(text, "1 of rank " + std::to_string(other->rank()) + " wait for ranks"), text);
  }
  say_together("was quiet as it should", *all);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  try {
    if (what == "operations") {
      check_operations();
    } else if (what == "trees") {
      check_trees();
    } else if (what == "throws") {
      check_throwing_step();
    } else if (what == "level") {
      check_level();
    } else if (what == "timeout") {
      check_timeout();
    } else if (what == "mismatch") {
      check_mismatch();
    } else if (what == "abort") {
      check_abort();
    } else if (what == "quiet") {
      check_quiet();
    } else {
      std::fprintf(stderr,
                   "usage: mpirun -n RANKS test_mpi_ranks "
                   "operations|trees|throws|level|mismatch|timeout|abort|quiet\n");
      return 2;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", what.c_str(), e.what());
    std::fflush(stderr);
    std::_Exit(1);  // the other ranks may wait in MPI_Finalize: mpirun ends them
  }
  return 0;
}
