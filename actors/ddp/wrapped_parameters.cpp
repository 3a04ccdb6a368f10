#include "actors/ddp/wrapped_parameters.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

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

void check_wrappable(const std::shared_ptr<torch::nn::Module>& module,
                     const std::shared_ptr<collectives::ProcessGroup>& group) {
  const auto refuse = [](std::string why, std::string todo) {
    throw BadConfig("cannot wrap the module", std::move(why), std::move(todo));
  };
  if (!module) refuse("it is null", "make one");
  if (!group) refuse("there is no group", "call init_process_group");
  (void)group->host_group();  // throws where it has none
  const auto& leaves = group->facts().leaves;
  if (std::any_of(leaves.begin(), leaves.end(), [](const auto& interval) { return interval.size() != 1; }))
    refuse("the group has logical ranks", "use a group of init_process_group, or train::run");
}

std::vector<NamedTensor> once_each(const torch::OrderedDict<std::string, torch::Tensor>& named) {
  std::vector<NamedTensor> found;
  std::unordered_set<const void*> seen;
  for (const auto& item : named) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      found.push_back({item.key(), item.value()});
  }
  return found;
}

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
