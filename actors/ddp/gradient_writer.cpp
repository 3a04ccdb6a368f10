#include "actors/ddp/gradient_writer.hpp"

#include <utility>

#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

std::vector<std::size_t> bytes_of(const std::vector<ReducedParameter>& parameters) {
  std::vector<std::size_t> bytes;
  bytes.reserve(parameters.size());
  for (const ReducedParameter& parameter : parameters) bytes.push_back(parameter.tensor.nbytes());
  return bytes;
}

}  // namespace

GradientWriter::GradientWriter(const std::vector<ReducedParameter>& parameters, bool place)
    : parameters_(parameters), place_(place), placement_(bytes_of(parameters)) {}

void GradientWriter::begin(const std::vector<GradientPlacement::Slot>& slots) {
  if (place_) placement_.begin_backward(slots);
}

void GradientWriter::end() {
  placement_.end_backward();
}

bool GradientWriter::write(std::size_t index, torch::Tensor gradient, const torch::Tensor& into) {
  if (placement_.landed(index, gradient) && same_layout(gradient, into)) return true;
  if (placement_.occupied(index)) {
    const bool in_slot = gradient.data_ptr() == into.data_ptr();  // in another layout
    deferred_.push_back({index, in_slot ? gradient.clone() : std::move(gradient)});
    return false;
  }
  put(into, gradient);
  return true;
}

void GradientWriter::take_deferred(const std::function<const torch::Tensor&(std::size_t)>& into,
                                   const std::function<void(std::size_t)>& done) {
  for (const Deferred& late : deferred_) {
    // The tensors that lived in the slots are gone, now that the backward is over.
    if (placement_.occupied(late.index)) {
      throw BadConfig("the gradient of " + parameters_[late.index].name + " has no place to go",
                      "a tensor that the backward made is kept and lives there",
                      "keep clones of what a backward makes, or set place_gradients to false");
    }
    put(into(late.index), late.gradient);
    done(late.index);
  }
  deferred_.clear();
}

}  // namespace troupe::train
