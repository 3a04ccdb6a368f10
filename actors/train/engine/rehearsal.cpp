#include "actors/train/engine/rehearsal.hpp"

#include <bit>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

[[noreturn]] void state_escaped(const std::string& where) {
  throw BadConfig(
      "the job keeps state that its TrainState lacks",
      "a fresh copy of the TrainState computed the same step, and " + where +
          ": a trainer that is replaced, or a run that is resumed, would go on otherwise",
      "add what changes while it trains (a member of the net, of the optimizer or of the job, a static "
      "variable) in the job's `void state(troupe::train::StateRegistry&, Net&, Optimizer&) const`");
}

}  // namespace

Rehearsal::Rehearsal(std::unique_ptr<TrainingModel> fresh, const TrainState& state, torch::Device device)
    : fresh_(std::move(fresh)),
      copy_(*fresh_),
      loss_state_(fresh_->buffers(), fresh_->setup().state, device) {
  copy_.install(state.view().parts).value();
}

void Rehearsal::leaf(const data::Batch& batch, Leaf& at, double loss) {
  const auto again = fresh_->loss(batch, at).item<double>();
  if (std::bit_cast<std::uint64_t>(again) != std::bit_cast<std::uint64_t>(loss))
    state_escaped("its loss was " + std::to_string(again) + " where the step's was " + std::to_string(loss));
}

void Rehearsal::take_gradients(TrainingModel& model) {
  const auto from = model.parameters();
  const auto to = fresh_->parameters();
  TROUPE_ASSERT(from.size() == to.size(), "models of one job have the same parameters");
  for (std::size_t i = 0; i < from.size(); ++i) {
    const torch::Tensor& gradient = from[i].tensor.grad();
    to[i].tensor.mutable_grad() = gradient.defined() ? gradient.detach().clone() : torch::Tensor();
  }
}

void Rehearsal::apply(const ApplyInfo& info, const StepOfCopy& how, const StepOfCopy& after) {
  apply_step(
      *fresh_, info, [&](torch::optim::Optimizer& one) { how(one, *fresh_); },
      GradientsOfAll{.complete = [&](torch::optim::Optimizer& one) { after(one, *fresh_); }});
}

void Rehearsal::compare(const TrainState& state) {
  const auto difference = first_difference(hash_parts(copy_.view().parts), hash_parts(state.view().parts));
  if (!difference.empty()) state_escaped(difference + " after it");
}

}  // namespace troupe::train
