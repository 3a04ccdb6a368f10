/// The memory that all processes of one measurement share: whose turn it is, a barrier a contender, and the
/// times.
///
/// Contenders take turns (A B A B ...); those whose turn it is not sleep. A contender is n processes.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>

namespace bench {

enum Contender : std::uint32_t { kOurs, kOursPrivate, kCopy, kGloo, kMpi, kContenders };

inline constexpr int kMaxRanks = 16;
inline constexpr int kMaxSamples = 4096;
inline constexpr int kAlgorithms = 2;  ///< that Gloo may choose from; the others use the first

struct Stage {
  // Written before any contender starts.
  std::uint64_t bytes = 0;  ///< of the buffer
  std::int32_t ranks = 0;
  std::int32_t samples_a_turn = 0;

  std::atomic<std::uint32_t> turn{0};      ///< contender + 1, or 0: nobody's; a futex
  std::atomic<std::uint32_t> finished{0};  ///< ranks that are through with the turn
  std::atomic<std::uint32_t> stop{0};
  std::atomic<std::uint32_t> ready{0};
  std::atomic<std::uint32_t> wrong{0};  ///< results that were not the sum

  struct alignas(64) Barrier {
    std::atomic<std::uint32_t> arrived{0};
    std::atomic<std::uint32_t> phase{0};
  };
  std::array<Barrier, kContenders> barriers;

  std::array<std::array<std::atomic<std::uint32_t>, kMaxRanks>, kContenders> taken;  ///< samples so far
  /// Nanoseconds by contender, algorithm, rank and sample.
  double times[kContenders][kAlgorithms][kMaxRanks][kMaxSamples];
};

inline double now_ns() {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<double>(ts.tv_sec) * 1e9 + static_cast<double>(ts.tv_nsec);
}

/// All ranks of a contender start together.
inline void meet(Stage& stage, Contender who) {
  Stage::Barrier& barrier = stage.barriers[who];
  const std::uint32_t phase = barrier.phase.load();
  if (barrier.arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(stage.ranks)) {
    barrier.arrived.store(0);
    barrier.phase.store(phase + 1);
    return;
  }
  for (unsigned i = 0; barrier.phase.load() == phase; ++i) {
    if (i % 64 == 63 || stage.ranks > 2) ::sched_yield();
  }
}

/// Sleeps until it is `who`'s turn; false when the measurement is over.
inline bool await_turn(Stage& stage, Contender who) {
  while (true) {
    if (stage.stop.load() != 0) return false;
    const std::uint32_t turn = stage.turn.load();
    if (turn == who + 1U) return true;
    const timespec slice{0, 100'000'000};
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&stage.turn), FUTEX_WAIT, turn, &slice, nullptr, 0);
  }
}

inline void end_turn(Stage& stage, Contender who) {
  stage.finished.fetch_add(1);
  // Until the conductor has taken the turn back, this rank would take it again.
  while (stage.turn.load() == who + 1U && stage.stop.load() == 0) ::sched_yield();
}

/// The input of a rank, written before every call: whole numbers, so that every order of addition gives the
/// same.
inline float input(int rank, std::size_t i) {
  return static_cast<float>((i & 63) + static_cast<std::size_t>(rank));
}
inline void fill(float* values, std::size_t count, int rank) {
  for (std::size_t i = 0; i < count; ++i) values[i] = input(rank, i);
}
inline bool is_sum(const float* values, std::size_t count, int ranks) {
  for (std::size_t i = 0; i < count; i += 1 + count / 97) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += input(r, i);
    if (values[i] != sum) return false;
  }
  return true;
}

/// One core for each rank where there are as many, as mpirun does it for its own: no contender then measures
/// where the kernel happened to put its processes. Threads that the caller made before stay free.
inline void bind_to_core(const Stage& stage, int rank) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < stage.ranks) return;
  int seen = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || seen++ != rank) continue;
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(core, &mine);
    ::sched_setaffinity(0, sizeof mine, &mine);
    return;
  }
}

/// Takes turns until the measurement is over. `buffer(a)` gives the values that call `a` works on, `call(a)`
/// is what is timed, for each of `algorithms`.
template <class BufferOf, class Call>
void perform(Stage& stage, Contender who, int rank, int algorithms, bool sums, BufferOf buffer, Call call) {
  const std::size_t count = stage.bytes / sizeof(float);
  if (who != kMpi) bind_to_core(stage, rank);
  stage.ready.fetch_add(1);
  while (await_turn(stage, who)) {
    for (int s = 0; s < stage.samples_a_turn; ++s) {
      const std::uint32_t sample = stage.taken[who][static_cast<std::size_t>(rank)].fetch_add(1);
      for (int a = 0; a < algorithms; ++a) {
        fill(buffer(a), count, rank);
        meet(stage, who);
        const double start = now_ns();
        call(a);
        const double took = now_ns() - start;
        if (sample < kMaxSamples) stage.times[who][a][rank][sample] = took;
        if (sums && !is_sum(buffer(a), count, stage.ranks)) stage.wrong.fetch_add(1);
        meet(stage, who);
      }
    }
    end_turn(stage, who);
  }
}

}  // namespace bench
