/// One operation, size and number of ranks: all contenders, started, conducted and ended.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>
#include <vector>

#include "bench/collectives/machines.hpp"
#include "bench/collectives/stage.hpp"
#include "runtime/core/fd.hpp"

namespace bench {

class Measurement {
 public:
  /// Starts every contender. `bytes` is rounded down to whole parts for `ranks` ranks. `offsets`: behind a
  /// page's begin, at which private buffers lie; up to kMostOffsets. `machines`: the ranks are on these two,
  /// and otherwise on this one. They outlive the measurement.
  Measurement(Op op, std::size_t bytes, int ranks, const std::vector<std::size_t>& offsets,
              const Machines* machines = nullptr);
  ~Measurement();
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  /// Conducts; false if a contender died or computed wrongly.
  bool run(int rounds);
  bool has(Contender who) const;
  /// Milliseconds of the best algorithm, without the first turn: those that a share of `quantile` of the
  /// calls stays below. Infinite if every one was too slow.
  double quantile_ms(Contender who, double quantile) const;

 private:
  void start_all(const std::vector<std::size_t>& offsets);
  void start_between(const Machines& machines);
  /// `whose`: the contender + 1, or 0 for nobody's.
  void give_turn(std::uint32_t whose);
  bool wait_for(const std::atomic<std::uint32_t>& count, std::size_t wanted);

  troupe::SharedMemory memory_;
  Stage& stage_;
  std::string folder_;
  std::vector<Contender> contenders_;
  std::vector<pid_t> pids_;
  std::uint32_t turns_ = 0;
};

/// The peers that this build lacks, and how to get them.
std::vector<std::string> skipped_peers();

}  // namespace bench
