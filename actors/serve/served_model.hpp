/// What serving asks of a user's struct, and the replica that computes with it.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/data/torch.hpp"
#include "actors/serve/replica.hpp"
#include "actors/train/api/weights.hpp"
#include "actors/train/job/job_registry.hpp"
#include "actors/train/job/member_names.hpp"

namespace troupe::serve {

/// `torch::Tensor predict(Net& net, const torch::Tensor& input) const`: [N, ...] to [N, ...]. Without it the
/// net's forward is what is served.
using train::HasPredict, train::NamesPredict;
template <class Job>
concept HasForward = requires(train::NetOf<Job>& net, const torch::Tensor& input) {
  { net->forward(input) } -> std::convertible_to<torch::Tensor>;
};
/// `data::FieldSpec input() const`: dtype and shape of one sample, without a dimension for the batch.
template <class Job>
concept DeclaresInput = requires(const Job& job) {
  { job.input() } -> std::convertible_to<data::FieldSpec>;
};
TROUPE_NAMES(NamesInput, input);

/// What the job's dataset gives its net as `input`. Throws BadConfig where it names no field so.
data::FieldSpec input_of_dataset(const data::Dataset& dataset);

template <class Job>
data::FieldSpec input_of(const Job& job) {
  static_assert(!NamesInput<Job> || DeclaresInput<Job>,
                "this struct's input must be `troupe::data::FieldSpec input() const`");
  if constexpr (DeclaresInput<Job>) {
    return job.input();
  } else {
    static_assert(train::HasDataset<Job>,
                  "this struct must say what its net takes: `troupe::data::FieldSpec input() const`, or "
                  "dataset(split), whose first sample says it");
    const auto dataset = data::share(job.dataset(data::Split::kTest));
    if (dataset == nullptr || dataset->size() == 0)
      throw BadConfig("cannot tell what the net takes", "the test set is empty",
                      "give the struct `troupe::data::FieldSpec input() const`");
    return input_of_dataset(*dataset);
  }
}

/// `torch::Tensor predict(const torch::Tensor& input) const`: a struct without a net, such as one that asks
/// other deployments.
template <class Job>
concept PredictsAlone = requires(const Job& job, const torch::Tensor& input) {
  { job.predict(input) } -> std::convertible_to<torch::Tensor>;
};

/// Throws BadConfig unless there are none.
void refuse_weights(const wire::Bytes& weights);

template <PredictsAlone Job>
class ReplicaAlone final : public Replica {
 public:
  ReplicaAlone(const Job& job, const ReplicaSetup& setup, const ReplicaCalls& calls)
      : Replica(setup, calls), job_(job) {}

 protected:
  void load(const wire::Bytes& weights) override { refuse_weights(weights); }
  torch::Tensor forward(const torch::Tensor& input) override { return job_.predict(input); }

 private:
  const Job job_;
};

template <class Job>
class ReplicaOf final : public Replica {
  static_assert(train::HasModel<Job> || train::HasSetup<Job>,
                "this struct lacks `Net model() const`, returning a torch module holder");
  static_assert(!NamesPredict<Job> || HasPredict<Job>,
                "this struct's predict must be `torch::Tensor predict(Net& net, const torch::Tensor& input) "
                "const`");
  static_assert(HasPredict<Job> || HasForward<Job>,
                "this struct lacks `torch::Tensor predict(Net& net, const torch::Tensor& input) const`, and "
                "its net has no forward of one tensor");

 public:
  ReplicaOf(const Job& job, const ReplicaSetup& setup, const ReplicaCalls& calls)
      : Replica(setup, calls), job_(job), net_(make_net()) {}

 protected:
  void load(const wire::Bytes& weights) override {
    std::vector<train::NamedTensor> tensors = modules_.parameters();
    for (auto& buffer : modules_.buffers()) tensors.push_back(std::move(buffer));
    train::copy_weights("the deployment's weights", weights, "", tensors);
    evaluating_.emplace(modules_);
  }
  torch::Tensor forward(const torch::Tensor& input) override {
    if constexpr (train::HasPrecision<Job>) {
      const train::Precision precision = job_.precision();
      const train::Autocast autocast(torch::kCPU,
                                     precision.autocast ? std::optional(precision.dtype) : std::nullopt,
                                     precision.autocast);
      return predict(input);
    } else {
      return predict(input);
    }
  }

 private:
  train::NetOf<Job> make_net() {
    if constexpr (train::HasSetup<Job>) {
      return job_.setup(modules_);
    } else {
      return modules_.module("", job_.model());
    }
  }
  torch::Tensor predict(const torch::Tensor& input) {
    if constexpr (HasPredict<Job>) {
      return job_.predict(net_, input);
    } else {
      return net_->forward(input);
    }
  }

  const Job job_;
  train::Setup modules_;
  train::NetOf<Job> net_;
  std::optional<train::Setup::Evaluating> evaluating_;
};

}  // namespace troupe::serve
