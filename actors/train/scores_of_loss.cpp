#include "actors/train/scores_of_loss.hpp"

#include <string_view>

#include "runtime/core/assert.hpp"

namespace troupe::train {

ScoresOfLoss*& ScoresOfLoss::of_this_thread() {
  static thread_local ScoresOfLoss* one = nullptr;
  return one;
}

ScoresOfLoss::ScoresOfLoss(torch::Tensor target) : target_(std::move(target)) {
  TROUPE_ASSERT(of_this_thread() == nullptr, "an evaluation is not begun in another");
  of_this_thread() = this;
  const auto start = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    if (of_this_thread() != nullptr) of_this_thread()->begins(function);
    return nullptr;
  };
  const auto end = [](const at::RecordFunction& function, at::ObserverContext*) {
    if (of_this_thread() != nullptr) of_this_thread()->ends(function);
  };
  at::RecordFunctionCallback callback(start, end);
  callback.needsInputs(true).scopes({at::RecordScope::FUNCTION});
  handle_ = at::addThreadLocalCallback(callback);
}

ScoresOfLoss::~ScoresOfLoss() {
  at::removeCallback(handle_);
  of_this_thread() = nullptr;
}

void ScoresOfLoss::begins(const at::RecordFunction& function) {
  if (inside_ != nullptr || !target_.defined()) return;
  const std::string_view name = function.name();
  if (name != "aten::cross_entropy_loss" && name != "aten::nll_loss_nd" && name != "aten::nll_loss") return;
  const auto inputs = function.inputs();
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return;
  if (!inputs[1].toTensor().is_same(target_)) return;
  inside_ = &function;
  scores_ = inputs[0].toTensor();
  ++seen_;
}

void ScoresOfLoss::ends(const at::RecordFunction& function) {
  if (inside_ == &function) inside_ = nullptr;
}

}  // namespace troupe::train
