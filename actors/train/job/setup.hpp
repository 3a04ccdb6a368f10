/// What a job trains: modules, optimizers, schedulers and state of its own, by name.
///
///     struct Nets { Generator generator{nullptr}; Discriminator discriminator{nullptr}; };
///     Nets setup(troupe::train::Setup& s) const {
///       Nets nets{s.module("generator", Generator(64)), s.module("discriminator", Discriminator())};
///       s.optimizer<torch::optim::Adam>("generator", nets.generator->parameters(), 2e-4);
///       s.optimizer<torch::optim::Adam>("discriminator", nets.discriminator->parameters(), 2e-4);
///       return nets;                       // what loss(), apply() and evaluate() get
///     }
///
/// A job with one module and one optimizer says model() and optimizer(net) instead, and scheduler(optimizer)
/// and state(): beside setup() none of these compile.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/ddp/named_tensor.hpp"
#include "actors/train/job/schedule.hpp"
#include "actors/train/job/user_state.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

/// An optimizer, and what moves its learning rate.
struct TrainedBy {
  std::string name;  ///< empty for that of a job with optimizer()
  torch::optim::Optimizer* optimizer = nullptr;
  torch::optim::LRScheduler* scheduler = nullptr;  ///< null: none
  Every every = Every::kEpoch;
};

/// Filled once, when the model is made, and then unchanged. Not thread-safe.
class Setup {
 public:
  explicit Setup(torch::Device on = torch::kCPU) : device(on) {}
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  const torch::Device device;  ///< where the trainer computes; cuda:0 is its own GPU
  StateRegistry state;         ///< what else changes while it trains

  /// Trains the module's parameters and keeps its buffers; moves it to `device`. Returns it. Throws BadConfig
  /// for a name that is taken.
  template <class Net>
  Net module(std::string name, Net net) {
    if constexpr (requires { net.ptr(); }) {
      add_module(std::move(name), net.ptr());
    } else {
      add_module(std::move(name), net);
    }
    return net;
  }

  /// Makes an optimizer of the arguments. It steps at every apply, unless the job's apply() says otherwise.
  template <class Optimizer, class... Args>
  Optimizer& optimizer(std::string name, Args&&... args) {
    auto made = std::make_unique<Optimizer>(std::forward<Args>(args)...);
    Optimizer& result = *made;
    add_optimizer(std::move(name), std::move(made));
    return result;
  }

  /// Makes a scheduler of that optimizer and the arguments.
  template <class Scheduler, class... Args>
  void scheduler(torch::optim::Optimizer& of, Every every, Args&&... args) {
    add_scheduler(of, every, std::make_unique<Scheduler>(of, std::forward<Args>(args)...));
  }
  /// Takes one that is made: `s.scheduler_of(adam, cosine(adam, {.warmup_steps = 100}))`, which steps as
  /// every_step() and schedules by name do, and another once an epoch.
  template <class Made>
  void scheduler_of(torch::optim::Optimizer& of, Made&& made) {
    if constexpr (requires { made.every; }) {
      scheduler_of(of, made.every, std::forward<Made>(made).scheduler);
    } else {
      scheduler_of(of, Every::kEpoch, std::forward<Made>(made));
    }
  }
  template <class Scheduler>
  void scheduler_of(torch::optim::Optimizer& of, Every every, Scheduler&& made) {
    add_scheduler(of, every, std::make_unique<std::remove_cvref_t<Scheduler>>(std::forward<Scheduler>(made)));
  }

  // For the engine.
  void add_module(std::string name, std::shared_ptr<torch::nn::Module> module);
  void add_optimizer(std::string name, std::unique_ptr<torch::optim::Optimizer> optimizer);
  void add_scheduler(torch::optim::Optimizer& of, Every every,
                     std::unique_ptr<torch::optim::LRScheduler> scheduler);
  /// In registration order, the same on every rank. A module with a name gives it to its tensors:
  /// "generator.layer1.weight". A tied one (a tensor that modules have in several places) comes once, by its
  /// first name.
  std::vector<NamedTensor> parameters() const;
  std::vector<NamedTensor> buffers() const;
  const std::vector<TrainedBy>& optimizers() const { return trained_; }
  /// Of a module, or one inside of it: its name in those of parameters.
  struct NamedModule {
    std::string name;
    bool is_container = false;  ///< it holds others and computes nothing
  };
  std::vector<NamedModule> all_modules() const;
  /// As parameters(), but a tied one comes by each of its names.
  std::vector<NamedTensor> all_parameters() const;
  /// Throws BadConfig for a job that trains nothing, an optimizer's parameter of no module, or one of two
  /// optimizers, for a tensor that is not on the device, and for a SyncBatchNorm over a group. An optimizer
  /// may have a tied parameter as often as modules have it: LibTorch's parameters() lists it so.
  void check() const;
  /// Tells schedules how long the run is. Before the first step.
  void know(const RunLength& run);
  /// Whether a module was converted to SyncBatchNorm over the job's leaves.
  bool syncs_in_step() const;

  /// All modules in evaluation mode while it lives; then each as it was, so that what the job froze stays so.
  class Evaluating {
   public:
    explicit Evaluating(const Setup& setup);
    ~Evaluating();
    Evaluating(const Evaluating&) = delete;
    Evaluating& operator=(const Evaluating&) = delete;

   private:
    std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> was_training_;
  };

 private:
  struct Module {
    std::string name;
    std::shared_ptr<torch::nn::Module> module;
  };
  void check_devices() const;
  void check_optimizers() const;

  std::vector<Module> modules_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<std::unique_ptr<torch::optim::LRScheduler>> schedulers_;
  std::vector<TrainedBy> trained_;
};

}  // namespace troupe::train
