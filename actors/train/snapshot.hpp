/// A job's whole TrainState at a step, in the memory of the program: what Run::pause() gives, and what a run
/// may begin from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "actors/checkpoint/manifest.hpp"
#include "actors/report/events.hpp"
#include "actors/train/plan.hpp"
#include "runtime/wire/address.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::train {

/// Where a job ended, as its driver knows it: what a manifest says, too.
struct JobPlace {
  std::int64_t step = 0;  ///< steps in the state
  StateHash hash;
  checkpoint::JobIdentity job;
  std::string history;  ///< encode_history
};

/// A state's bytes in a file.
struct StateFile {
  std::string path;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  StateHash hash;  ///< hash_of_bytes
};

/// A trainer that keeps a copy of a state: who begins from it takes it there.
struct StateDonor {
  ActorAddress trainer{};
  std::uint64_t number = 0;  ///< of what it keeps
  std::string who;           ///< "trainer 0 (pid 77)"; empty: there is none
};

/// A copy of the weights of a job that trains on, and where it is read: a trainer keeps it.
struct WeightCopy {
  StateDonor at;
  std::int64_t step = 0;  ///< steps in it, all committed
};

/// Copies share the state's bytes, and so does every run that began from it, as long as it lives.
struct Snapshot {
  JobPlace place;
  std::uint64_t job_type = 0;  ///< in the job registry
  report::Metrics metrics;     ///< of the last epoch: "test/accuracy"
  /// All parts as a safetensors file: load_weights' copy_weights reads the weights from it. Null: they are in
  /// `file`.
  std::shared_ptr<const wire::Bytes> state;
  StateFile file{};
  StateDonor donor{};  ///< asked first, as long as it keeps this state

  std::int64_t step() const { return place.step; }
};

/// How a snapshot is called where a plan names a checkpoint's file.
inline constexpr const char* kSnapshotPath = "the snapshot in the driver's memory";

/// A state moves between program and trainers in pieces of so many bytes.
inline constexpr std::size_t kStatePiece = std::size_t{16} << 20;

/// The piece of `all` that begins at `offset`; nothing behind its end.
inline wire::Bytes state_piece(wire::ByteView all, std::uint64_t offset) {
  const auto rest = all.subspan(static_cast<std::size_t>(std::min<std::uint64_t>(offset, all.size())));
  const auto piece = rest.first(std::min(rest.size(), kStatePiece));
  return {piece.begin(), piece.end()};
}

}  // namespace troupe::train
