#include "actors/train/engine/loss_check.hpp"

#include <algorithm>
#include <string>

#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

/// How often it was changed in place.
std::uint64_t version_of(const torch::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
}

std::uint64_t versions_of(const std::vector<torch::Tensor>& tensors) {
  std::uint64_t sum = 0;
  for (const torch::Tensor& tensor : tensors) sum += version_of(tensor);
  return sum;
}

}  // namespace

LossCheck::LossCheck(TrainingModel& model) : model_(model) {
  for (const NamedTensor& parameter : model.parameters()) parameters_.push_back(parameter.tensor);
  const std::vector<NamedTensor> buffers = model.buffers();
  for (const UserPart& part : model.setup().state.parts()) {
    const auto is_it = [&](const NamedTensor& buffer) { return buffer.tensor.is_same(part.tensor); };
    if (part.tensor.defined() && std::none_of(buffers.begin(), buffers.end(), is_it))
      declared_.push_back(part.tensor);
  }
}

LossCheck::Before LossCheck::before(const data::Batch& batch, bool bytes) const {
  Before before{versions_of(parameters_), versions_of(declared_),
                version_of(batch.input) + version_of(batch.target)};
  for (const auto& [name, tensor] : batch.others) before.batch += version_of(tensor);
  for (const UserPart& part : model_.setup().state.parts()) {
    if (bytes && part.any_size) before.bytes.push_back(part.read());
  }
  return before;
}

void LossCheck::check(const Before& before, const data::Batch& batch) const {
  const Before now = this->before(batch, !before.bytes.empty());
  const auto refuse = [&](const std::string& what, const char* why, const char* todo) {
    throw BadConfig("the job changes " + what + " in " + model_.part(), why, todo);
  };
  constexpr const char* kOthers = "each trainer would go on with other ones, as it computes other samples";
  if (now.parameters != before.parameters)
    refuse("parameters of the net", kOthers, "change them in apply(), which every trainer does alike");
  if (now.declared != before.declared)
    refuse(
        "tensors of its state()", kOthers,
        "make them buffers of the net (register_buffer), of which logical rank 0's go on, or change them in "
        "apply()");
  if (now.batch != before.batch)
    refuse("a batch in place", "should the step run again, after a death, it would have the changed one",
           "change a clone() of its tensor");
  for (std::size_t i = 0; i < now.bytes.size(); ++i) {
    if (!torch::equal(now.bytes[i], before.bytes[i]))
      refuse("bytes of its state()", kOthers,
             "keep what loss() changes in a buffer of the net, a number or a random stream, of which logical "
             "rank 0's goes on, or change it in apply()");
  }
}

}  // namespace troupe::train
