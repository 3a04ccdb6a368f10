// Structs that are no jobs, and what the compiler says of each: compiled by refused_jobs.sh, which wants the
// errors in their order, and no other.
#include "actors/serve/served_model.hpp"
#include "actors/train/job/job_registry.hpp"

namespace nn = torch::nn;
namespace optim = torch::optim;
using namespace troupe;
using namespace troupe::train;
using torch::Tensor;

#define JOB(Name)                                                                                        \
  template std::unique_ptr<TrainingModel> troupe::train::make_training_model(const Name&, std::uint64_t, \
                                                                             torch::Device);

struct Simple {
  nn::Linear model() const { return nn::Linear(4, 2); }
  optim::SGD optimizer(nn::Linear& net) const { return optim::SGD(net->parameters(), 0.1); }
};
struct Named {
  nn::Linear setup(Setup& s) const {
    auto net = s.module("net", nn::Linear(4, 2));
    auto& sgd = s.optimizer<optim::SGD>("all", net->parameters(), 0.1);
    s.scheduler_of(sgd, cosine(sgd));
    return net;
  }
};
struct WithLoss {
  Tensor loss(nn::Linear& net, const data::Batch& batch) const { return net->forward(batch.input).sum(); }
};
struct WithCriterion {
  Tensor criterion(const Tensor& output, const data::Batch&) const { return output.sum(); }
};

// Fine, all of them: fields of such names are the struct's own, and a template is a member, too.
struct Good : Simple, WithLoss {
  double ema = 0.9;
  static constexpr int evaluate = 3;
  auto scheduler(auto& sgd) const { return optim::StepLR(sgd, 1, 0.5); }
  Tensor predict(nn::Linear& net, const Tensor& input) const { return net->forward(input); }
};
JOB(Good)
struct GoodFinal final : Named, WithCriterion {
  Tensor correct(nn::Linear&, const data::Batch& batch) const { return batch.target; }
};
JOB(GoodFinal)

struct WrongSampler {
  std::shared_ptr<data::Dataset> dataset(data::Split) const;
  data::Sampling sampler() { return {}; }
};
constexpr auto kWrongSampler = JobEntry<WrongSampler>::kId;  // expect: this job's sampler must be

// The learning rate stayed, and nobody said so.
struct OwnScheduler : Named, WithLoss {
  auto scheduler(optim::SGD& sgd) const { return cosine(sgd); }
};
JOB(OwnScheduler)  // expect: this job has a setup, so that nobody calls its scheduler: say it in setup()
struct OwnState : Named, WithLoss {
  void state(StateRegistry&, nn::Linear&, optim::SGD&) const {}
};
JOB(OwnState)  // expect: this job has a setup, so that nobody calls its state
struct Both : Named, Simple, WithLoss {};
JOB(Both)  // expect: this job has a setup, so that nobody calls its model or optimizer
struct OwnOptimizer : Named, WithLoss {
  optim::SGD optimizer(nn::Linear& net) const { return optim::SGD(net->parameters(), 0.1); }
};
JOB(OwnOptimizer)  // expect: this job has a setup, so that nobody calls its model or optimizer
struct CorrectBesideEvaluate : Simple, WithLoss {
  Tensor evaluate(nn::Linear& net, const data::Batch& batch, Leaf&) const { return loss(net, batch); }
  Tensor correct(nn::Linear&, const data::Batch& batch) const { return batch.target; }
};
JOB(CorrectBesideEvaluate)  // expect: this job has an evaluate, so that nobody calls its correct

// Members that were not found, as they cannot be called so.
struct OverloadedScheduler : Simple, WithLoss {
  auto scheduler(optim::Adam& adam) const { return cosine(adam); }
  auto scheduler(optim::AdamW& adam) const { return cosine(adam); }
};
JOB(OverloadedScheduler)  // expect: this job's scheduler must be
struct ChangingScheduler : Simple, WithLoss {
  auto scheduler(auto& sgd) { return cosine(sgd); }
};
JOB(ChangingScheduler)  // expect: this job's scheduler must be
struct WrongLoss : Simple, WithCriterion {
  Tensor loss(nn::Linear& net) const { return net->weight.sum(); }
};
JOB(WrongLoss)  // expect: this job has a criterion and a loss
struct WrongLossAlone : Simple {
  Tensor loss(nn::Linear& net, const data::Batch& batch) { return net->forward(batch.input).sum(); }
};
JOB(WrongLossAlone)  // expect: this job's loss must be
struct WrongEvaluate : Simple, WithLoss {
  Tensor evaluate(nn::Linear& net, const data::Batch& batch) const { return loss(net, batch); }
};
JOB(WrongEvaluate)  // expect: this job's evaluate must be
struct WrongCorrect : Simple, WithLoss {
  Tensor correct(const Tensor& output, const data::Batch&) const { return output; }
};
JOB(WrongCorrect)  // expect: this job's correct must be
struct WrongPredict : Simple, WithLoss {
  Tensor predict(const Tensor& input) const { return input; }
};
JOB(WrongPredict)  // expect: this job's predict must be
struct WrongEma final : Simple, WithLoss {
  double ema() const { return 0.9; }
};
JOB(WrongEma)  // expect: this job's ema must be
struct NoNet : WithLoss {};
JOB(NoNet)  // expect: this job lacks `Net model() const`
struct NoLoss : Simple {};
JOB(NoLoss)  // expect: this job lacks `torch::Tensor criterion(
struct WrongInput {
  data::FieldSpec input(int) const { return {}; }
  std::shared_ptr<data::Dataset> dataset(data::Split) const;
};
template data::FieldSpec troupe::serve::input_of(const WrongInput&);  // expect: this struct's input must be
