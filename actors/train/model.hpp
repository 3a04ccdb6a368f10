/// The type-erased thing that a trainer drives, built from a user's struct:
///
///     struct Digits {
///       ConvNet model() const;               // a torch module holder or shared_ptr
///       auto optimizer(ConvNet& net) const;  // SGD, Adam, AdamW, Adagrad or RMSprop, or derived from one
///       torch::Tensor loss(ConvNet& net, const data::Batch& batch) const;  // a scalar
///       // Optional:
///       auto scheduler(Optimizer& optimizer) const;                           // stepped once an epoch
///       torch::Tensor correct(ConvNet& net, const data::Batch& batch) const;  // see evaluate()
///       // What else changes while it trains (user_state.hpp):
///       void state(StateRegistry& state, ConvNet& net, Optimizer& optimizer) const;
///     };
///
/// Not thread-safe: one thread drives a model.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/train/batch.hpp"
#include "actors/train/leaf_random.hpp"
#include "actors/train/user_state.hpp"

namespace troupe::train {

struct NamedTensor {
  std::string name;  ///< as in the module's state dict: "layer1.0.weight"
  torch::Tensor tensor;
};

/// Sums over the samples of one batch, so that batches and ranks add up.
struct Evaluation {
  std::int64_t samples = 0;
  std::int64_t correct = 0;
  double loss_sum = 0;
};

class TrainingModel {
 public:
  virtual ~TrainingModel() = default;

  /// In registration order, the same on every rank.
  virtual std::vector<NamedTensor> parameters() const = 0;
  /// Module buffers in registration order (BatchNorm's running statistics).
  virtual std::vector<NamedTensor> buffers() const = 0;

  /// Forward and loss of one batch in training mode: a scalar to run backward from.
  virtual torch::Tensor loss(const data::Batch& batch) = 0;
  /// Forward in evaluation mode without gradients. The loss counts as a mean over the batch.
  virtual Evaluation evaluate(const data::Batch& batch) = 0;

  virtual torch::optim::Optimizer& optimizer() = 0;
  /// Null where the job has none.
  virtual torch::optim::LRScheduler* scheduler() = 0;
  /// What the job declared beyond that.
  virtual const StateRegistry& user_state() const = 0;
};

template <class Job>
concept HasModel = requires(const Job& job) {
  job.model()->named_parameters();
  job.model()->named_buffers();
};
template <class Job>
using NetOf = decltype(std::declval<const Job&>().model());

template <class Job>
concept HasOptimizer = requires(const Job& job, NetOf<Job>& net) {
  requires std::derived_from<std::remove_cvref_t<decltype(job.optimizer(net))>, torch::optim::Optimizer>;
};
template <class Job>
concept HasLoss = requires(const Job& job, NetOf<Job>& net, const data::Batch& batch) {
  { job.loss(net, batch) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
concept HasCorrect = requires(const Job& job, NetOf<Job>& net, const data::Batch& batch) {
  { job.correct(net, batch) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
concept HasForward = requires(NetOf<Job>& net, const data::Batch& batch) {
  { net->forward(batch.input) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
using OptimizerOf =
    std::remove_cvref_t<decltype(std::declval<const Job&>().optimizer(std::declval<NetOf<Job>&>()))>;
template <class Job>
concept NamesScheduler = requires {
  &Job::scheduler;
};
template <class Job>
concept HasScheduler = requires(const Job& job, OptimizerOf<Job>& optimizer) {
  requires std::derived_from<std::remove_cvref_t<decltype(job.scheduler(optimizer))>,
                             torch::optim::LRScheduler>;
};

template <class Job>
concept HasState = requires(const Job& job, StateRegistry& state, NetOf<Job>& net,
                            OptimizerOf<Job>& optimizer) {
  job.state(state, net, optimizer);
};
template <class Job>
concept NamesState = requires {
  requires std::is_member_function_pointer_v<decltype(&Job::state)>;
};

namespace detail {

/// Whether a class is one of LibTorch's own, all of whose state is known here or refused.
template <class T, class... Known>
inline constexpr bool kIsOneOf = (std::is_same_v<T, Known> || ...);
template <class Job>
consteval bool keeps_known_state() {
  namespace optim = torch::optim;
  bool known = kIsOneOf<OptimizerOf<Job>, optim::SGD, optim::Adam, optim::AdamW, optim::RMSprop,
                        optim::Adagrad, optim::LBFGS>;
  if constexpr (HasScheduler<Job>) {
    using Scheduler = std::remove_cvref_t<decltype(std::declval<const Job&>().scheduler(
        std::declval<OptimizerOf<Job>&>()))>;
    known = known && kIsOneOf<Scheduler, optim::StepLR>;
  }
  return known;
}

template <class Tensors>
std::vector<NamedTensor> named_tensors(const Tensors& items) {
  std::vector<NamedTensor> named;
  for (const auto& item : items) {
    if (item.value().defined()) named.push_back({item.key(), item.value()});
  }
  return named;
}

template <class Job>
class JobModel final : public TrainingModel {
 public:
  explicit JobModel(Job job) : job_(std::move(job)), net_(job_.model()), optimizer_(job_.optimizer(net_)) {
    if constexpr (HasScheduler<Job>) scheduler_.emplace(job_.scheduler(optimizer_));
    if constexpr (HasState<Job>) job_.state(user_state_, net_, optimizer_);
    net_->train();
  }

  std::vector<NamedTensor> parameters() const override { return named_tensors(net_->named_parameters()); }
  std::vector<NamedTensor> buffers() const override { return named_tensors(net_->named_buffers()); }
  torch::optim::Optimizer& optimizer() override { return optimizer_; }

  torch::optim::LRScheduler* scheduler() override {
    if constexpr (HasScheduler<Job>) {
      return &*scheduler_;
    } else {
      return nullptr;
    }
  }

  const StateRegistry& user_state() const override { return user_state_; }

  torch::Tensor loss(const data::Batch& batch) override { return job_.loss(net_, batch); }

  Evaluation evaluate(const data::Batch& batch) override {
    const torch::NoGradGuard no_grad;
    const TrainingModeOff evaluating(net_);
    Evaluation sums;
    sums.samples = batch.size();
    sums.loss_sum = job_.loss(net_, batch).template item<double>() * static_cast<double>(sums.samples);
    sums.correct = correct(batch).sum().template item<std::int64_t>();
    return sums;
  }

 private:
  using Net = NetOf<Job>;

  struct TrainingModeOff {
    explicit TrainingModeOff(Net& module) : net(module) { net->eval(); }
    ~TrainingModeOff() { net->train(); }
    TrainingModeOff(const TrainingModeOff&) = delete;
    TrainingModeOff& operator=(const TrainingModeOff&) = delete;
    Net& net;
  };

  torch::Tensor correct(const data::Batch& batch) {
    if constexpr (HasCorrect<Job>) {
      return job_.correct(net_, batch);
    } else {
      return net_->forward(batch.input).argmax(1).eq(batch.target);
    }
  }

  template <class J>
  struct SchedulerOf {
    using type = int;
  };
  template <HasScheduler J>
  struct SchedulerOf<J> {
    using type =
        std::remove_cvref_t<decltype(std::declval<const J&>().scheduler(std::declval<OptimizerOf<J>&>()))>;
  };

  Job job_;
  Net net_;
  OptimizerOf<Job> optimizer_;
  std::optional<typename SchedulerOf<Job>::type> scheduler_;
  StateRegistry user_state_;
};

}  // namespace detail

/// Builds the model of a job with initial weights drawn from `seed`, in training mode. What the struct lacks
/// is a compile error that says so in its first line.
template <class Job>
std::unique_ptr<TrainingModel> make_training_model(const Job& job, std::uint64_t seed) {
  if constexpr (!HasModel<Job>) {
    static_assert(HasModel<Job>, "this job lacks `Net model() const`, returning a torch module holder");
  } else if constexpr (!HasOptimizer<Job>) {
    static_assert(HasOptimizer<Job>,
                  "this job lacks `auto optimizer(Net& net) const`, returning a torch::optim optimizer");
  } else if constexpr (!HasLoss<Job>) {
    static_assert(HasLoss<Job>,
                  "this job lacks `torch::Tensor loss(Net& net, const troupe::data::Batch& batch) const`");
  } else if constexpr (!HasCorrect<Job> && !HasForward<Job>) {
    static_assert(HasCorrect<Job>,
                  "this job's net has no `forward(batch.input)` that returns a tensor, so the job needs "
                  "`torch::Tensor correct(Net& net, const troupe::data::Batch& batch) const`");
  } else if constexpr (NamesScheduler<Job> && !HasScheduler<Job>) {
    static_assert(HasScheduler<Job>,
                  "this job's scheduler must be `auto scheduler(Optimizer& optimizer) const`, "
                  "returning a torch::optim::LRScheduler");
  } else if constexpr (NamesState<Job> && !HasState<Job>) {
    static_assert(HasState<Job>,
                  "this job's state must be `void state(troupe::train::StateRegistry& state, Net& net, "
                  "Optimizer& optimizer) const`");
  } else if constexpr (!detail::keeps_known_state<Job>() && !HasState<Job>) {
    static_assert(
        HasState<Job>,
        "this job's optimizer or scheduler is a class of its own, so the job needs `void "
        "state(troupe::train::StateRegistry& state, Net& net, Optimizer& optimizer) const`, which adds "
        "what such a class changes while it trains (nothing, if it changes nothing)");
  } else {
    seed_initial_weights(seed);
    return std::make_unique<detail::JobModel<Job>>(job);
  }
}

}  // namespace troupe::train
