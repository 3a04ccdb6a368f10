/// The memory that all processes of one measurement share: what is measured, whose turn it is, a barrier a
/// contender, and the times.
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
#include <functional>
#include <thread>
#include <vector>

#include "bench/collectives/pattern.hpp"

namespace bench {

enum Contender : std::uint32_t { kOurs, kCopy, kGloo, kMpi, kWire, kOursPrivate, kContenders = 8 };
inline constexpr std::size_t kMostOffsets = kContenders - kOursPrivate;  ///< each has ranks of its own
inline constexpr const char* kContenderNames[kContenders] = {
    "ours", "memcpy", "Gloo", "OpenMPI", "the wire", "ours, private", "ours, private", "ours, private"};
/// Ours on private buffers that lie at the i-th offset.
constexpr Contender on_private(std::size_t i) {
  return static_cast<Contender>(kOursPrivate + i);
}

inline constexpr int kMaxRanks = 16;
inline constexpr int kMaxSamples = 4096;
inline constexpr int kMaxAlgorithms = 3;  ///< of one contender, of which the best counts

struct Stage {
  // Written before any contender starts.
  Op op = Op::kAllReduce;
  std::uint64_t bytes = 0;  ///< of a rank's larger buffer; a multiple of 4 x ranks
  std::int32_t ranks = 0;
  std::int32_t samples_a_turn = 0;

  /// Number of the turn * kTurnsARound + contender + 1; a futex.
  std::atomic<std::uint32_t> turn{0};
  std::atomic<std::uint32_t> finished{0};  ///< ranks that are through with the turn
  std::atomic<std::uint32_t> stop{0};
  std::atomic<std::uint32_t> ready{0};
  std::array<std::atomic<std::uint32_t>, kContenders> wrong;  ///< results that were not right

  struct alignas(64) Barrier {
    std::atomic<std::uint32_t> arrived{0};
    std::atomic<std::uint32_t> phase{0};
  };
  std::array<Barrier, kContenders> barriers;

  std::array<std::array<std::atomic<std::uint32_t>, kMaxRanks>, kContenders> taken;  ///< samples so far
  /// Nanoseconds by contender, algorithm, rank and sample.
  double times[kContenders][kMaxAlgorithms][kMaxRanks][kMaxSamples];
  std::array<std::atomic<std::int32_t>, kContenders> algorithms;  ///< how many each contender has
  /// Algorithms that are not called again, since a call took more than too_slow(); they do not count.
  std::array<std::array<std::atomic<bool>, kMaxAlgorithms>, kContenders> abandoned;

  Shape shape() const { return {op, ranks, bytes / sizeof(float)}; }
  /// Nanoseconds: half a second and 100 MB/s. Some of Gloo's algorithms drip (a segment a delayed
  /// acknowledgement) with more ranks than cores.
  double too_slow() const { return 5e8 + 10.0 * static_cast<double>(bytes); }
};

/// More than there are contenders.
inline constexpr std::uint32_t kTurnsARound = 16;

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
  // Who yields on a loaded machine gets its core back after milliseconds: the next call would be timed from
  // there.
  static const unsigned cores = std::thread::hardware_concurrency();  // reads a file, within others' time
  const bool yields = static_cast<unsigned>(stage.ranks) > cores;
  for (unsigned i = 0; barrier.phase.load() == phase; ++i) {
    if (yields || i > 200'000) ::sched_yield();
  }
}

/// Sleeps until it is `who`'s turn, and another one than `taken`, the last that this rank took; false when
/// the measurement is over.
inline bool await_turn(Stage& stage, Contender who, std::uint32_t& taken) {
  while (true) {
    if (stage.stop.load() != 0) return false;
    const std::uint32_t turn = stage.turn.load();
    if (turn != taken && turn % kTurnsARound == who + 1U) {
      taken = turn;
      return true;
    }
    const timespec slice{0, 100'000'000};
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&stage.turn), FUTEX_WAIT, turn, &slice, nullptr, 0);
  }
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

/// One way to do it: where a call finds its input and leaves its output (the same, in place), and the call.
struct Algorithm {
  float* input = nullptr;
  float* output = nullptr;
  std::function<void()> call;
};

/// Takes turns until the measurement is over. Inputs are written before every call and outputs checked after
/// it (unless `checked` is false); neither is timed.
inline void perform(Stage& stage, Contender who, int rank, bool checked,
                    const std::vector<Algorithm>& algorithms) {
  const Shape shape = stage.shape();
  if (who != kMpi) bind_to_core(stage, rank);
  stage.algorithms[who].store(static_cast<std::int32_t>(algorithms.size()));
  stage.ready.fetch_add(1);
  std::uint32_t taken = 0;
  while (await_turn(stage, who, taken)) {
    for (int s = 0; s < stage.samples_a_turn; ++s) {
      const std::uint32_t sample = stage.taken[who][static_cast<std::size_t>(rank)].fetch_add(1);
      for (std::size_t a = 0; a < algorithms.size(); ++a) {
        if (stage.abandoned[who][a].load()) continue;
        fill(shape, algorithms[a].input, rank);
        meet(stage, who);
        const double start = now_ns();
        algorithms[a].call();
        const double took = now_ns() - start;
        if (sample < kMaxSamples) stage.times[who][a][rank][sample] = took;
        if (took > stage.too_slow())
          stage.abandoned[who][a].store(true);  // before all meet, so that all know
        meet(stage, who);  // with more ranks than cores, a check would be in the time of another rank
        if (checked && !is_right(shape, algorithms[a].output, rank)) stage.wrong[who].fetch_add(1);
        meet(stage, who);
      }
    }
    stage.finished.fetch_add(1);
  }
}

}  // namespace bench
