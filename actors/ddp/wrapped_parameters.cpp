#include "actors/ddp/wrapped_parameters.hpp"

#include <mutex>
#include <unordered_set>

#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

struct Held {
  std::mutex mutex;
  std::unordered_set<const void*> parameters;  ///< guarded by mutex
};
Held& held() {
  static Held all;
  return all;
}

}  // namespace

WrappedParameters::WrappedParameters(const std::vector<NamedTensor>& parameters) {
  Held& all = held();
  const std::lock_guard lock(all.mutex);
  for (const NamedTensor& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    if (all.parameters.count(parameter.tensor.unsafeGetTensorImpl()) != 0) {
      throw BadConfig(
          "cannot wrap the module",
          "parameter " + parameter.name + " is wrapped already, and both would reduce its gradient",
          "let the other wrapper go first");
    }
    held_.push_back(parameter.tensor);
  }
  for (const torch::Tensor& tensor : held_) all.parameters.insert(tensor.unsafeGetTensorImpl());
}

WrappedParameters::~WrappedParameters() {
  Held& all = held();
  const std::lock_guard lock(all.mutex);
  for (const torch::Tensor& tensor : held_) all.parameters.erase(tensor.unsafeGetTensorImpl());
}

}  // namespace troupe::train
