#include "actors/train/trainer/held_state.hpp"

#include <algorithm>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/engine/held_shards.hpp"
#include "actors/train/snapshot.hpp"

namespace troupe::train {
namespace {

/// Averages of weights are weights, too (job/ema.hpp).
constexpr const char* kAverages = "user/ema/";

wire::Bytes write_whole(const std::vector<HeldPart>& held) {
  std::vector<StatePart> parts;
  for (const HeldPart& one : held) parts.push_back(one.part);
  return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(parts).value());
}

}  // namespace

HeldPiece HeldState::piece(const TrainerMachine& machine, TrainEngine& engine, HeldWish wish,
                           std::uint64_t offset) {
  if (!holds(machine, wish)) {
    check(machine);
    auto held = engine.held();
    std::erase_if(held, [&](const HeldPart& one) {
      // What all have, the first trainer gives.
      if (wish.in_shards && one.is_shared && machine.rank() != 0) return true;
      return wish.weights_only && !one.is_weight && !one.part.name.starts_with(kAverages);
    });
    bytes_ = wish.in_shards ? write_shard(held) : write_whole(held);
    wish_ = wish;
    steps_ = machine.steps();
    lineage_ = machine.lineage();
  }
  HeldPiece piece{steps_, lineage_, state_piece(bytes_, offset)};
  if (piece.bytes.empty()) bytes_ = {};  // all of it was taken: a copy of the state is large
  return piece;
}

void HeldState::check(const TrainerMachine& machine) {
  if (machine.steps() == kNoState || !machine.rests())
    throw_error({ErrorCode::kUnavailable, "this trainer has no final state", "it holds no whole one", ""});
}

bool HeldState::holds(const TrainerMachine& machine, HeldWish wish) const {
  // A job that only held after an epoch has gone on since.
  return !bytes_.empty() && wish_ == wish && steps_ == machine.steps() && lineage_ == machine.lineage();
}

}  // namespace troupe::train
