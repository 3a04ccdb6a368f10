/// A state on its way to a trainer, in pieces.
#pragma once

#include <functional>

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

/// The snapshot that the driver of a job holds. Throws Corrupt where it is not what `hash` says.
wire::Bytes fetch_snapshot(const ActorHandle<TrainDriver>& driver, const StateHash& hash,
                           const std::function<void()>& progress);

}  // namespace troupe::train
