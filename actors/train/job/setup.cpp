#include "actors/train/job/setup.hpp"

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "actors/ddp/sync_batch_norm.hpp"
#include "actors/train/job/plateau.hpp"

namespace troupe::train {
namespace {

using Items = torch::OrderedDict<std::string, torch::Tensor>;

std::string full_name(const std::string& module, const std::string& tensor) {
  return module.empty() ? tensor : module + "." + tensor;
}

/// Tensors that were not `seen` yet.
void add_named(std::vector<NamedTensor>& into, std::unordered_set<const torch::TensorImpl*>& seen,
               const std::string& module, const Items& items) {
  for (const auto& item : items) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      into.push_back({full_name(module, item.key()), item.value()});
  }
}

}  // namespace

void Setup::add_module(std::string name, std::shared_ptr<torch::nn::Module> module) {
  if (module == nullptr)
    throw BadConfig("the module '" + name + "' is null", "the job made none", "make one");
  for (const Module& other : modules_) {
    if (other.name == name)
      throw BadConfig("two modules are called '" + name + "'", "a tensor is found by its name",
                      "give each a name of its own");
  }
  if (!device.is_cpu()) module->to(device);
  modules_.push_back({std::move(name), std::move(module)});
}

void Setup::add_optimizer(std::string name, std::unique_ptr<torch::optim::Optimizer> optimizer) {
  for (const TrainedBy& other : trained_) {
    if (other.name == name)
      throw BadConfig("two optimizers are called '" + name + "'", "an optimizer is found by its name",
                      "give each a name of its own");
  }
  trained_.push_back({std::move(name), optimizer.get(), nullptr, Every::kEpoch});
  optimizers_.push_back(std::move(optimizer));
}

void Setup::add_scheduler(torch::optim::Optimizer& of, Every every,
                          std::unique_ptr<torch::optim::LRScheduler> scheduler) {
  for (TrainedBy& trained : trained_) {
    if (trained.optimizer != &of) continue;
    if (trained.scheduler != nullptr)
      throw BadConfig("the optimizer '" + trained.name + "' has two schedulers",
                      "both would set its learning rate", "give it one");
    if (auto* plateau = dynamic_cast<ReduceOnPlateau*>(scheduler.get())) plateau->add_to(state, trained.name);
    trained.scheduler = scheduler.get();
    trained.every = every;
    schedulers_.push_back(std::move(scheduler));
    return;
  }
  throw BadConfig("a scheduler belongs to no optimizer of this job",
                  "its optimizer was not made by this setup", "pass what s.optimizer() returned");
}

std::vector<NamedTensor> Setup::parameters() const {
  std::vector<NamedTensor> named;
  std::unordered_set<const torch::TensorImpl*> seen;
  for (const Module& one : modules_) add_named(named, seen, one.name, one.module->named_parameters());
  return named;
}

std::vector<NamedTensor> Setup::buffers() const {
  std::vector<NamedTensor> named;
  std::unordered_set<const torch::TensorImpl*> seen;
  for (const Module& one : modules_) add_named(named, seen, one.name, one.module->named_buffers());
  return named;
}

std::vector<Setup::NamedModule> Setup::all_modules() const {
  std::vector<NamedModule> all;
  for (const Module& one : modules_) {
    for (const auto& item : one.module->named_modules("", /*include_self=*/!one.name.empty())) {
      const torch::nn::Module& module = *item.value();
      all.push_back({item.key().empty() ? one.name : full_name(one.name, item.key()),
                     module.as<torch::nn::ModuleListImpl>() != nullptr ||
                         module.as<torch::nn::ModuleDictImpl>() != nullptr});
    }
  }
  return all;
}

std::vector<NamedTensor> Setup::all_parameters() const {
  std::vector<NamedTensor> all;
  for (const Module& one : modules_) {
    for (const auto& item : one.module->named_parameters())
      all.push_back({full_name(one.name, item.key()), item.value()});
  }
  return all;
}

void Setup::check() const {
  check_devices();
  if (modules_.empty() || trained_.empty())
    throw BadConfig("the job trains nothing",
                    modules_.empty() ? "its setup() names no module" : "it names no optimizer",
                    "call s.module() and s.optimizer()");
  check_optimizers();
}

void Setup::check_devices() const {
  for (const auto& tensors : {parameters(), buffers()}) {
    for (const NamedTensor& one : tensors) {
      if (one.tensor.device().type() == device.type()) continue;
      throw BadConfig(
          "the model is on two devices",
          one.name + " is on " + one.tensor.device().str() + ", and this trainer computes on " + device.str(),
          "make modules on the CPU, or on Setup::device: a trainer has one device");
    }
  }
  for (const Module& one : modules_) {
    if (synced_over(one.module) != SyncedOver::kGroup) continue;
    throw BadConfig("the model has a SyncBatchNorm over a process group",
                    "a job's trainers come and go, and their groups with them",
                    "call convert_sync_batchnorm(net), without a group: it is over the job's logical ranks");
  }
}

void Setup::know(const RunLength& run) {
  for (const auto& scheduler : schedulers_) {
    if (auto* one = dynamic_cast<KnowsRun*>(scheduler.get())) one->know(run);
  }
}

bool Setup::syncs_in_step() const {
  return std::any_of(modules_.begin(), modules_.end(),
                     [](const Module& one) { return synced_over(one.module) == SyncedOver::kLeaves; });
}

void Setup::check_optimizers() const {
  struct Known {
    std::string name;  ///< the first
    int places = 0;    ///< in which modules have it
  };
  std::unordered_map<const torch::TensorImpl*, Known> known;
  for (const Module& one : modules_) {
    for (const auto& item : one.module->named_parameters()) {
      const Known first{full_name(one.name, item.key())};
      ++known.try_emplace(item.value().unsafeGetTensorImpl(), first).first->second.places;
    }
  }
  std::unordered_set<const torch::TensorImpl*> trained;
  for (const TrainedBy& by : trained_) {
    for (const auto& group : by.optimizer->param_groups()) {
      std::unordered_map<const torch::TensorImpl*, int> times;
      for (const auto& parameter : group.params()) {
        const auto* one = parameter.unsafeGetTensorImpl();
        const auto found = known.find(one);
        if (found == known.end())
          throw BadConfig("an optimizer has a parameter of no module", "no rank would reduce its gradient",
                          "pass the module to s.module()");
        const bool first = ++times[one] == 1;
        if (times[one] > found->second.places || (first && !trained.insert(one).second))
          throw BadConfig("two optimizers, or one twice, have the same parameter",
                          "each would step " + found->second.name, "give a parameter to one optimizer");
      }
    }
  }
}

Setup::Evaluating::Evaluating(const Setup& setup) {
  for (const Module& one : setup.modules_) {
    for (const auto& module : one.module->modules())
      was_training_.emplace_back(module, module->is_training());
    one.module->eval();
  }
}

Setup::Evaluating::~Evaluating() {
  // train() sets what is below, too: parents come before their children.
  for (const auto& [module, was] : was_training_) module->train(was);
}

}  // namespace troupe::train
