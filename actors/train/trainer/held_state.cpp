#include "actors/train/trainer/held_state.hpp"

#include <algorithm>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/snapshot.hpp"

namespace troupe::train {
namespace {

/// Averages of weights are weights, too (job/ema.hpp).
constexpr const char* kAverages = "user/ema/";

}  // namespace

HeldPiece HeldState::piece(const TrainerMachine& machine, TrainEngine& engine, bool weights_only,
                           std::uint64_t offset) {
  if (!holds(machine, weights_only)) {
    check(machine);
    auto state = weights_only ? engine.weights() : engine.state();
    if (weights_only) {
      const auto rest = state.parts.begin() + static_cast<std::ptrdiff_t>(engine.weight_parts());
      state.parts.erase(std::remove_if(rest, state.parts.end(),
                                       [](const auto& part) { return !part.name.starts_with(kAverages); }),
                        state.parts.end());
    }
    bytes_ = checkpoint::write_safetensors(checkpoint::lay_out_safetensors(state.parts).value());
    weights_only_ = weights_only;
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

bool HeldState::holds(const TrainerMachine& machine, bool weights_only) const {
  // A job that only held after an epoch has gone on since.
  return !bytes_.empty() && weights_only_ == weights_only && steps_ == machine.steps() &&
         lineage_ == machine.lineage();
}

}  // namespace troupe::train
