#include "actors/train/trainer/held_state.hpp"

#include <algorithm>
#include <utility>

#include "actors/train/engine/held_shards.hpp"
#include "actors/train/snapshot.hpp"

namespace troupe::train {
namespace {

/// Averages of weights are weights, too (job/ema.hpp).
constexpr const char* kAverages = "user/ema/";

checkpoint::SafetensorsLayout lay_out_whole(const std::vector<HeldPart>& held) {
  std::vector<StatePart> parts;
  for (const HeldPart& one : held) parts.push_back(one.part);
  return checkpoint::lay_out_safetensors(parts).value();
}

}  // namespace

HeldPiece HeldState::piece(const TrainerMachine& machine, TrainEngine& engine, HeldWish wish,
                           std::uint64_t offset) {
  check(machine);
  // A job that only held after an epoch has gone on since.
  const Of of{wish, machine.steps(), machine.lineage(), machine.generation()};
  if (of_ != of) {
    parts_ = engine.held();
    std::erase_if(parts_, [&](const HeldPart& one) {
      // What all have, the first trainer gives.
      if (wish.in_shards && one.is_shared && machine.rank() != 0) return true;
      return wish.weights_only && !one.is_weight && !one.part.name.starts_with(kAverages);
    });
    file_ = wish.in_shards ? lay_out_shard(parts_) : lay_out_whole(parts_);
    of_ = of;
  }
  HeldPiece piece{of.steps, of.lineage, {}};
  const std::uint64_t left = file_.total_bytes - std::min(offset, file_.total_bytes);
  piece.bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(left, kStatePiece)));
  checkpoint::read_layout(file_, offset, piece.bytes);
  if (piece.bytes.empty()) drop();
  return piece;
}

void HeldState::drop() {
  of_.reset();
  parts_.clear();
  file_ = {};
}

void HeldState::check(const TrainerMachine& machine) {
  if (machine.steps() == kNoState || !machine.rests())
    throw_error({ErrorCode::kUnavailable, "this trainer has no final state", "it holds no whole one", ""});
}

}  // namespace troupe::train
