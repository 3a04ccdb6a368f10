/// Copies of a trainer's weights, taken between two steps for readers outside the job: a deployment that
/// takes them while the job trains on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "actors/train/engine/engine.hpp"
#include "actors/train/trainer/kept_copy.hpp"
#include "actors/train/trainer/state_stream.hpp"
#include "runtime/client/future.hpp"

namespace troupe::train {

/// Thread-safe: the actor's thread asks and reads, the thread that computes makes the copies.
class WeightCopies {
 public:
  ~WeightCopies() { clear(); }

  /// Who computes, and how it is woken: until clear().
  void made_by(std::function<void()> wake) { wake_ = std::move(wake); }
  /// Answered when the thread that computes has made one. At most four are kept: the newest.
  Future<KeptState> ask();
  bool are_wanted() const;
  /// For all who asked; they hear what `copy` throws. `of`: the state that it copies.
  void make(const KeptState& of, const std::function<std::unique_ptr<StateCopy>()>& copy);
  /// A piece of that copy. Throws Unavailable where it is not kept any more. For one thread at a time.
  SharedPiece read(std::uint64_t number, std::uint64_t offset) const;
  void drop(std::uint64_t number);
  /// Once a second, in the thread that reads. The pages that its trainer changes are kept twice, so one that
  /// nobody reads for kIdleBeats is given up: who asked for it has gone.
  void beat();
  static constexpr int kIdleBeats = 600;
  /// The thread that made them is gone, and they with it: whoever waits hears that.
  void clear();

 private:
  std::function<void()> wake_;  ///< the actor's thread alone
  mutable std::mutex mutex_;    ///< guards what follows
  std::vector<Promise<KeptState>> asked_;
  std::map<std::uint64_t, std::shared_ptr<StateStream>> kept_;
  std::uint64_t last_ = 0;
};

}  // namespace troupe::train
