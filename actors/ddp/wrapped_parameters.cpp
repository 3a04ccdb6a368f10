#include "actors/ddp/wrapped_parameters.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "actors/ddp/comm_hook.hpp"
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

void check_devices(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers,
                   const collectives::ProcessGroup& group) {
  const torch::Device wanted = device_of(group);
  const auto text_of = [](torch::Device device) { return device.is_cpu() ? "the CPU" : device.str(); };
  std::string there, elsewhere;  // the first of each
  torch::Device found = wanted;
  for (const auto* tensors : {&parameters, &buffers}) {
    for (const NamedTensor& one : *tensors) {
      const torch::Device its = one.tensor.device();
      std::string& first = its == wanted ? there : elsewhere;
      if (!first.empty()) continue;
      first = (tensors == &parameters ? "parameter " : "buffer ") + one.name + " is on " + text_of(its);
      if (its != wanted) found = its;
    }
  }
  if (elsewhere.empty()) return;
  const std::string move = "move it before wrapping: net->to(torch::Device(\"" + wanted.str() + "\"))";
  const std::string of = "the group, of the backend " + std::string(group.backend()) + ", is of ";
  const char* what = "cannot wrap the module";
  if (!there.empty()) {
    throw BadConfig(what, "it is on several devices: " + there + ", " + elsewhere,
                    "keep the whole module on " + text_of(wanted));
  }
  if (wanted.is_cpu()) {
    throw BadConfig(what, elsewhere + ", and " + of + "CPUs",
                    found.is_cuda() ? move + ", or use init_process_group(\"nccl\", ...)" : move);
  }
  throw BadConfig(what, elsewhere + ", and " + of + "GPUs: this rank's is " + text_of(wanted),
                  move + (found.is_cuda() ? ", or give its GPU as InitOptions::device"
                                          : ", or use init_process_group(\"native\", ...)"));
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
