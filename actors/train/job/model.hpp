// clang-format off
/// The type-erased thing that a trainer drives, built from a user's struct:
///
///     struct Digits {
///       ConvNet model() const;               // a torch module holder or shared_ptr
///       auto optimizer(ConvNet& net) const;  // SGD, Adam, AdamW, Adagrad or RMSprop, or of yours
///       torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const;  // a scalar, of
///                                            // net->forward(batch.input); or instead, where that is not all:
///       torch::Tensor loss(ConvNet& net, const data::Batch& batch) const;
///
///       // Optional, and their absence costs nothing:
///       Nets setup(Setup& s) const;           // several nets, optimizers (setup.hpp): in place of model(),
///                                             // optimizer(), scheduler() and state()
///       torch::Tensor loss(ConvNet& net, const data::Batch& batch, Leaf& at) const;  // figures, weights (leaf.hpp)
///       auto scheduler(Optimizer& o) const;   // steps once an epoch, or every_step (schedule.hpp)
///       void apply(Apply& a) const;           // clipping, skipping, taking turns (apply.hpp)
///       torch::Tensor evaluate(ConvNet& net, const data::Batch& batch, Leaf& at) const;  // returns the test loss
///       torch::Tensor correct(ConvNet& net, const data::Batch& batch) const;  // of each sample, for test/accuracy
///       Precision precision() const;          // bfloat16, a loss scale (mixed_precision.hpp)
///       Ema ema() const;                      // evaluations use an average of the weights (ema.hpp)
///       void state(StateRegistry& s, ConvNet& net, Optimizer& o) const;  // what else changes (user_state.hpp)
///     };
// clang-format on
///
/// Without evaluate() the test loss is the loss in evaluation mode, and test/accuracy is counted where
/// correct() is there, or forward(batch.input) gives [N, classes] and the target is int64 [N]. With
/// criterion() one forward serves both; with loss() accuracy takes a forward of its own.
///
/// Not thread-safe: one thread drives a model.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/ddp/autocast.hpp"
#include "actors/train/job/apply.hpp"
#include "actors/train/job/batch.hpp"
#include "actors/train/job/ema.hpp"
#include "actors/train/job/leaf.hpp"
#include "actors/train/job/leaf_random.hpp"
#include "actors/train/job/member_names.hpp"
#include "actors/train/job/metrics.hpp"
#include "actors/train/job/mixed_precision.hpp"
#include "actors/train/job/plateau.hpp"
#include "actors/train/job/schedules.hpp"
#include "actors/train/job/setup.hpp"

namespace troupe::train {

class TrainingModel {
 public:
  virtual ~TrainingModel() = default;

  /// Modules, optimizers and declared state.
  virtual Setup& setup() = 0;
  /// Forward and loss of one batch in training mode: a scalar to run backward from.
  virtual torch::Tensor loss(const data::Batch& batch, Leaf& at) = 0;
  /// Forward in evaluation mode without gradients; the loss is one of the figures that `at` gets.
  virtual void evaluate(const data::Batch& batch, Leaf& at) = 0;
  /// What the net says of the batch's input, in evaluation mode without gradients.
  virtual torch::Tensor predict(const data::Batch& batch) = 0;
  /// Steps the optimizers.
  virtual void apply(Apply& apply) = 0;
  /// All parameters are as the step makes them.
  virtual void applied() {}

  std::vector<NamedTensor> parameters() { return setup().parameters(); }
  std::vector<NamedTensor> buffers() { return setup().buffers(); }
  const std::vector<TrainedBy>& optimizers() { return setup().optimizers(); }

  /// The part of the job's code that was called last, as its errors name it: "criterion", or what is no
  /// member of the job as "the optimizer".
  const char* part() const { return part_; }

 protected:
  const char* part_ = "model";
};

TROUPE_NAMES(NamesModel, model);
TROUPE_NAMES(NamesOptimizer, optimizer);
TROUPE_NAMES(NamesScheduler, scheduler);
TROUPE_NAMES(NamesState, state);
TROUPE_NAMES(NamesSetup, setup);
TROUPE_NAMES(NamesCriterion, criterion);
TROUPE_NAMES(NamesLoss, loss);
TROUPE_NAMES(NamesEvaluate, evaluate);
TROUPE_NAMES(NamesCorrect, correct);
TROUPE_NAMES(NamesPredict, predict);
TROUPE_NAMES(NamesApply, apply);
TROUPE_NAMES(NamesPrecision, precision);
TROUPE_NAMES(NamesEma, ema);

template <class Job>
concept HasModel = requires(const Job& job) {
  job.model()->named_parameters();
  job.model()->named_buffers();
};
template <class Job>
concept HasSetup = requires(const Job& job, Setup& setup) {
  job.setup(setup);
};

namespace detail {
template <class Job>
struct NetIn {
  using type = decltype(std::declval<const Job&>().model());
};
template <HasSetup Job>
struct NetIn<Job> {
  using type = decltype(std::declval<const Job&>().setup(std::declval<Setup&>()));
};
}  // namespace detail
/// What loss() gets: what model() or setup() returned.
template <class Job>
using NetOf = typename detail::NetIn<Job>::type;

template <class Job>
concept HasOptimizer = requires(const Job& job, NetOf<Job>& net) {
  requires std::derived_from<std::remove_cvref_t<decltype(job.optimizer(net))>, torch::optim::Optimizer>;
};
template <class Job>
concept HasLossOfLeaf = requires(const Job& job, NetOf<Job>& net, const data::Batch& batch, Leaf& at) {
  { job.loss(net, batch, at) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
concept HasLoss = HasLossOfLeaf<Job> || requires(const Job& job, NetOf<Job>& net, const data::Batch& batch) {
  { job.loss(net, batch) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
concept HasCriterion = requires(const Job& job, NetOf<Job>& net, const data::Batch& batch) {
  { job.criterion(net->forward(batch.input), batch) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
concept HasEvaluate = requires(const Job& job, NetOf<Job>& net, const data::Batch& batch, Leaf& at) {
  { job.evaluate(net, batch, at) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
concept HasCorrect = requires(const Job& job, NetOf<Job>& net, const data::Batch& batch) {
  { job.correct(net, batch) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
concept HasPredict = requires(const Job& job, NetOf<Job>& net, const torch::Tensor& input) {
  { job.predict(net, input) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
concept HasForward = requires(NetOf<Job>& net, const data::Batch& batch) {
  { net->forward(batch.input) } -> std::convertible_to<torch::Tensor>;
};
template <class Job>
concept HasApply = requires(const Job& job, Apply& apply) {
  job.apply(apply);
};
template <class Job>
concept HasPrecision = requires(const Job& job) {
  { job.precision() } -> std::convertible_to<Precision>;
};
template <class Job>
concept HasEma = requires(const Job& job) {
  { job.ema() } -> std::convertible_to<Ema>;
};
template <class Job>
using OptimizerOf =
    std::remove_cvref_t<decltype(std::declval<const Job&>().optimizer(std::declval<NetOf<Job>&>()))>;

namespace detail {
template <class Made>
struct SchedulerIn {
  using type = Made;
};
template <class Scheduler>
struct SchedulerIn<Scheduled<Scheduler>> {
  using type = Scheduler;
};
}  // namespace detail
template <class Job>
using SchedulerOf =
    typename detail::SchedulerIn<std::remove_cvref_t<decltype(std::declval<const Job&>().scheduler(
        std::declval<OptimizerOf<Job>&>()))>>::type;
template <class Job>
concept HasScheduler = requires {
  requires std::derived_from<SchedulerOf<Job>, torch::optim::LRScheduler>;
};

/// Whether a schedule may look at what evaluations come to; of several optimizers' schedules nothing is
/// known.
template <class Job>
constexpr bool looks_at_metrics() {
  if constexpr (HasScheduler<Job>) {
    return std::is_same_v<SchedulerOf<Job>, ReduceOnPlateau>;
  } else {
    return HasSetup<Job>;
  }
}

template <class Job>
concept HasState = requires(const Job& job, StateRegistry& state, NetOf<Job>& net,
                            OptimizerOf<Job>& optimizer) {
  job.state(state, net, optimizer);
};

namespace detail {

/// Whether a class is one of LibTorch's own or ours, all of whose state is known.
template <class T, class... Known>
inline constexpr bool kIsOneOf = (std::is_same_v<T, Known> || ...);
template <class Job>
consteval bool keeps_known_state() {
  namespace optim = torch::optim;
  bool known =
      kIsOneOf<OptimizerOf<Job>, optim::SGD, optim::Adam, optim::AdamW, optim::RMSprop, optim::Adagrad>;
  if constexpr (HasScheduler<Job>)
    known = known && kIsOneOf<SchedulerOf<Job>, optim::StepLR, LambdaLR, ReduceOnPlateau>;
  return known;
}

template <class Job>
class JobModel final : public TrainingModel {
 public:
  JobModel(Job job, torch::Device device) : job_(std::move(job)), setup_(device), net_(make_net()) {
    if constexpr (HasPrecision<Job>) {
      mixed_.emplace(job_.precision(), setup_);
    }
    setup_.check();
    if constexpr (HasEma<Job>) averaged_.emplace(job_.ema(), setup_);
  }

  Setup& setup() override { return setup_; }

  torch::Tensor loss(const data::Batch& batch, Leaf& at) override {
    if (!mixed_) return plain_loss(batch, at);
    const Autocast autocast = mixed_->autocast();
    return mixed_->scaled(plain_loss(batch, at));
  }

  void evaluate(const data::Batch& batch, Leaf& at) override {
    const AveragedWeights::InUse in_use(averaged_ ? &*averaged_ : nullptr);
    if (!mixed_) return plain_evaluate(batch, at);
    const Autocast autocast = mixed_->autocast();
    plain_evaluate(batch, at);
  }

  torch::Tensor predict(const data::Batch& batch) override {
    const torch::NoGradGuard no_grad;
    const Setup::Evaluating evaluating(setup_);
    if (!mixed_) return plain_predict(batch);
    const Autocast autocast = mixed_->autocast();
    return plain_predict(batch);
  }

  void apply(Apply& apply) override {
    part_ = HasApply<Job> ? "apply" : "the optimizer";
    if (mixed_) mixed_->before(apply);
    if constexpr (HasApply<Job>) {
      job_.apply(apply);
    } else {
      apply.step();
    }
    if (mixed_) mixed_->after();
  }

  void applied() override {
    if (averaged_) averaged_->update();
  }

 private:
  torch::Tensor plain_loss(const data::Batch& batch, Leaf& at) {
    if constexpr (HasCriterion<Job>) {
      const torch::Tensor output = forward(batch);
      part_ = "criterion";
      return job_.criterion(output, batch);
    } else {
      part_ = "loss";
      if constexpr (HasLossOfLeaf<Job>) {
        return job_.loss(net_, batch, at);
      } else {
        return job_.loss(net_, batch);
      }
    }
  }

  void plain_evaluate(const data::Batch& batch, Leaf& at) {
    const torch::NoGradGuard no_grad;
    const Setup::Evaluating evaluating(setup_);
    torch::Tensor test_loss;
    if constexpr (HasEvaluate<Job>) {
      part_ = "evaluate";
      test_loss = job_.evaluate(net_, batch, at);
    } else if constexpr (HasCriterion<Job>) {
      const torch::Tensor output = forward(batch);
      part_ = "criterion";
      test_loss = job_.criterion(output, batch);
      count_correct(batch, at, [&] { return output; });
    } else {
      test_loss = plain_loss(batch, at);
      if constexpr (HasForward<Job>)
        count_correct(batch, at, [&] { return forward(batch); });
      else
        count_correct(batch, at, [] { return torch::Tensor(); });
    }
    const double share = at.weight().value_or(static_cast<double>(batch.size()));
    at.count("loss", test_loss.item<double>() * share, share);
  }

  torch::Tensor plain_predict(const data::Batch& batch) {
    if constexpr (HasPredict<Job>) {
      part_ = "predict";
      return job_.predict(net_, batch.input);
    } else if constexpr (HasForward<Job>) {
      return forward(batch);
    } else {
      throw BadConfig("the job has no prediction", "its net has no forward of one tensor",
                      "give it `torch::Tensor predict(Net& net, const torch::Tensor& input) const`");
    }
  }

  torch::Tensor forward(const data::Batch& batch) {
    part_ = "the forward of the net";
    return net_->forward(batch.input);
  }

  NetOf<Job> make_net() {
    if constexpr (HasSetup<Job>) {
      return job_.setup(setup_);
    } else {
      auto net = setup_.module("", job_.model());
      // As its function returns it: an optimizer may be neither copied nor moved.
      auto owned = std::unique_ptr<OptimizerOf<Job>>(new OptimizerOf<Job>(job_.optimizer(net)));
      auto& optimizer = *owned;
      setup_.add_optimizer("", std::move(owned));
      if constexpr (HasScheduler<Job>) setup_.scheduler_of(optimizer, job_.scheduler(optimizer));
      if constexpr (HasState<Job>) job_.state(setup_.state, net, optimizer);
      return net;
    }
  }

  /// `output`: makes the net's output, undefined where the net has no forward of one tensor.
  template <class Output>
  void count_correct(const data::Batch& batch, Leaf& at, const Output& output) {
    if constexpr (HasCorrect<Job>) {
      part_ = "correct";
      at.count("accuracy", job_.correct(net_, batch).sum(), static_cast<double>(batch.size()));
    } else {
      const bool classes =
          batch.target.defined() && batch.target.scalar_type() == torch::kLong && batch.target.dim() == 1;
      if (!classes) return;
      const torch::Tensor out = output();
      if (!out.defined() || out.dim() != 2 || out.size(0) != batch.target.size(0)) return;
      at.count("accuracy", out.argmax(1).eq(batch.target).sum(), static_cast<double>(batch.size()));
    }
  }

  Job job_;
  Setup setup_;
  NetOf<Job> net_;
  std::optional<MixedPrecision> mixed_;
  std::optional<AveragedWeights> averaged_;
};

// Each stops the compiler at the first member that does not fit, in words; true: they all do.

template <class Job>
consteval bool says_what_trains() {
  if constexpr (NamesSetup<Job> && !HasSetup<Job>) {
    static_assert(
        HasSetup<Job>,
        "this job's setup must be `Nets setup(troupe::train::Setup& s) const`, returning what loss() gets");
  } else if constexpr (HasSetup<Job> && (NamesModel<Job> || NamesOptimizer<Job>)) {
    static_assert(!NamesModel<Job> && !NamesOptimizer<Job>,
                  "this job has a setup, so that nobody calls its model or optimizer: keep one of the two "
                  "ways, s.module(...) and s.optimizer<SGD>(...) in setup()");
  } else if constexpr (HasSetup<Job> && NamesScheduler<Job>) {
    static_assert(!NamesScheduler<Job>,
                  "this job has a setup, so that nobody calls its scheduler: say it in setup(), "
                  "`s.scheduler_of(optimizer, troupe::train::cosine(optimizer))`");
  } else if constexpr (HasSetup<Job> && NamesState<Job>) {
    static_assert(!NamesState<Job>,
                  "this job has a setup, so that nobody calls its state: say it in setup(), "
                  "`s.state.add(\"name\", value)`");
  } else if constexpr (HasSetup<Job>) {
    return true;
  } else if constexpr (!HasModel<Job>) {
    static_assert(HasModel<Job>, "this job lacks `Net model() const`, returning a torch module holder");
  } else if constexpr (!HasOptimizer<Job>) {
    static_assert(HasOptimizer<Job>,
                  "this job lacks `auto optimizer(Net& net) const`, returning a torch::optim optimizer");
  } else if constexpr (NamesScheduler<Job> && !HasScheduler<Job>) {
    static_assert(HasScheduler<Job>,
                  "this job's scheduler must be `auto scheduler(Optimizer& optimizer) const`, "
                  "returning a torch::optim::LRScheduler, or that as every_step(...)");
  } else if constexpr (NamesState<Job> && !HasState<Job>) {
    static_assert(HasState<Job>,
                  "this job's state must be `void state(troupe::train::StateRegistry& state, Net& net, "
                  "Optimizer& optimizer) const`");
  } else if constexpr (!keeps_known_state<Job>() && !HasState<Job>) {
    static_assert(
        HasState<Job>,
        "this job's optimizer or scheduler is a class of its own, so the job needs `void "
        "state(troupe::train::StateRegistry& state, Net& net, Optimizer& optimizer) const`, which adds "
        "what such a class changes while it trains (nothing, if it changes nothing)");
  } else {
    return true;
  }
  return false;
}

template <class Job>
consteval bool says_its_loss() {
  if constexpr (NamesCriterion<Job> && NamesLoss<Job>) {
    static_assert(!NamesLoss<Job>, "this job has a criterion and a loss: keep one of them");
  } else if constexpr (NamesCriterion<Job> && !HasCriterion<Job>) {
    static_assert(HasCriterion<Job>,
                  "this job's criterion must be `torch::Tensor criterion(const torch::Tensor& output, const "
                  "troupe::data::Batch& batch) const`, and its net's forward(batch.input) gives the output");
  } else if constexpr (NamesLoss<Job> && !HasLoss<Job>) {
    static_assert(HasLoss<Job>,
                  "this job's loss must be `torch::Tensor loss(Net& net, const troupe::data::Batch& batch) "
                  "const`, or take a `troupe::train::Leaf& at` behind the batch");
  } else if constexpr (!HasCriterion<Job> && !HasLoss<Job>) {
    static_assert(HasLoss<Job>,
                  "this job lacks `torch::Tensor criterion(const torch::Tensor& output, const "
                  "troupe::data::Batch& batch) const`, or `torch::Tensor loss(Net& net, const "
                  "troupe::data::Batch& batch) const`");
  } else {
    return true;
  }
  return false;
}

template <class Job>
consteval bool fits_otherwise() {
  if constexpr (NamesEvaluate<Job> && !HasEvaluate<Job>) {
    static_assert(
        HasEvaluate<Job>,
        "this job's evaluate must be `torch::Tensor evaluate(Net& net, const troupe::data::Batch& batch, "
        "troupe::train::Leaf& at) const`, returning the test loss");
  } else if constexpr (NamesCorrect<Job> && HasEvaluate<Job>) {
    static_assert(!NamesCorrect<Job>,
                  "this job has an evaluate, so that nobody calls its correct: count the accuracy in "
                  "evaluate(), `at.count(\"accuracy\", right.sum(), batch.size())`");
  } else if constexpr (NamesCorrect<Job> && !HasCorrect<Job>) {
    static_assert(HasCorrect<Job>,
                  "this job's correct must be `torch::Tensor correct(Net& net, const troupe::data::Batch& "
                  "batch) const`, returning which samples are right");
  } else if constexpr (NamesPredict<Job> && !HasPredict<Job>) {
    static_assert(HasPredict<Job>,
                  "this job's predict must be `torch::Tensor predict(Net& net, const torch::Tensor& input) "
                  "const`");
  } else if constexpr (NamesApply<Job> && !HasApply<Job>) {
    static_assert(HasApply<Job>, "this job's apply must be `void apply(troupe::train::Apply& a) const`");
  } else if constexpr (NamesPrecision<Job> && !HasPrecision<Job>) {
    static_assert(HasPrecision<Job>,
                  "this job's precision must be `troupe::train::Precision precision() const`");
  } else if constexpr (NamesEma<Job> && !HasEma<Job>) {
    static_assert(HasEma<Job>, "this job's ema must be `troupe::train::Ema ema() const`");
  } else {
    return true;
  }
  return false;
}

/// One error at a time: another part of the struct is looked at when this one fits.
template <class Job>
consteval bool fits() {
  if constexpr (!says_what_trains<Job>())
    return false;
  else if constexpr (!says_its_loss<Job>())
    return false;
  else
    return fits_otherwise<Job>();
}

}  // namespace detail

/// Builds the model of a job with initial weights drawn from `seed`, in training mode, on `device`: the
/// weights are drawn on the CPU and moved, so that they are the same on every device. What the struct lacks,
/// and a member that would not be called, is a compile error that says so in its first line.
template <class Job>
std::unique_ptr<TrainingModel> make_training_model(const Job& job, std::uint64_t seed,
                                                   torch::Device device = torch::kCPU) {
  if constexpr (detail::fits<Job>()) {
    seed_initial_weights(seed);
    return std::make_unique<detail::JobModel<Job>>(job, device);
  }
}

}  // namespace troupe::train
