/// A state on its way to a trainer, in pieces.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/train/engine/engine.hpp"
#include "actors/train/plan.hpp"
#include "runtime/client/session.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::train {

class TrainDriver;

/// How long a piece may take, and how often its wait is looked at meanwhile.
inline constexpr Duration kPieceArrives = std::chrono::seconds(30);
inline constexpr Duration kPieceLook = std::chrono::milliseconds(100);

/// The answer, or what the call fails with. `progress` is called meanwhile; what it throws ends the wait.
template <class Piece>
Piece await(const Future<Piece>& asked, const std::function<void()>& progress) {
  const Instant deadline = MonotonicClock().now() + kPieceArrives;
  while (!asked.wait(kPieceLook) && MonotonicClock().now() < deadline) progress();
  Piece piece = asked.get(Duration(0));
  progress();
  return piece;
}

/// The snapshot that a job begins from: from the trainer of another job that keeps it (StateDonor), or, where
/// that cannot give it, from the driver. For one thread at a time.
class SnapshotSource {
 public:
  /// `begins`: the job is known to begin from one. What a donor keeps comes meanwhile, in a thread of its
  /// own.
  SnapshotSource(ActorHandle<TrainDriver> driver, ProcessGate& process, bool begins);
  ~SnapshotSource();
  SnapshotSource(const SnapshotSource&) = delete;
  SnapshotSource& operator=(const SnapshotSource&) = delete;

  /// With `own_options` optimizers have the options that the job's struct sets. Throws Corrupt where the
  /// driver's is not what `hash` says, and what the engine does.
  void install(TrainEngine& engine, const StateHash& hash, bool own_options,
               const std::function<void()>& progress);
  /// The state is had from elsewhere: what has come of it so far is not kept in memory.
  void drop();

 private:
  class Fetch;
  const ActorHandle<TrainDriver> driver_;
  ProcessGate& process_;
  std::unique_ptr<Fetch> fetch_;
};

}  // namespace troupe::train
