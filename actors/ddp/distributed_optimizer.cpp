#include "actors/ddp/distributed_optimizer.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <unordered_map>
#include <unordered_set>

#include "actors/ddp/adasum.hpp"
#include "actors/ddp/agreement.hpp"
#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/kept_for_good.hpp"
#include "collectives/native/native_group.hpp"
#include "collectives/texts.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"

namespace troupe::train {

using collectives::ProcessGroup;
using collectives::ReduceOp;

namespace {

[[noreturn]] void refuse_optimizer(std::string why, std::string todo) {
  throw BadConfig("cannot make a DistributedOptimizer", std::move(why), std::move(todo));
}

/// The optimizer's parameters, once each; `name_of(tensor, group, index)` gives the name.
template <class Name>
std::vector<NamedTensor> parameters_of(torch::optim::Optimizer& optimizer, Name&& name_of) {
  std::vector<NamedTensor> found;
  std::unordered_set<const void*> seen;
  std::size_t group = 0;
  for (auto& parameters : optimizer.param_groups()) {
    std::size_t index = 0;
    for (const torch::Tensor& tensor : parameters.params()) {
      found.push_back({name_of(tensor, group, index++), tensor});
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second)
        refuse_optimizer("parameter " + found.back().name + " is in the optimizer twice",
                         "give it each parameter once");
    }
    ++group;
  }
  return found;
}

std::string place_of(std::size_t group, std::size_t index) {
  return "group " + std::to_string(group) + ", parameter " + std::to_string(index);
}

std::vector<NamedTensor> by_place(torch::optim::Optimizer& optimizer) {
  return parameters_of(optimizer, [](const torch::Tensor&, std::size_t group, std::size_t index) {
    return place_of(group, index);
  });
}

std::vector<NamedTensor> by_name(torch::optim::Optimizer& optimizer,
                                 const DistributedOptimizer::NamedParameters& named) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& item : named) names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  return parameters_of(optimizer, [&](const torch::Tensor& tensor, std::size_t group, std::size_t index) {
    const auto name = names.find(tensor.unsafeGetTensorImpl());
    if (name == names.end()) {
      refuse_optimizer("the optimizer's " + place_of(group, index) + " is not among the named parameters",
                       "give the named_parameters() of everything that it trains");
    }
    return name->second;
  });
}

std::shared_ptr<ProcessGroup> checked(std::shared_ptr<ProcessGroup> group,
                                      const DistributedOptimizerOptions& options) {
  if (!group) refuse_optimizer("there is no group", "call init_process_group");
  (void)group->host_group();  // throws where it has none
  const auto& leaves = group->facts().leaves;
  if (std::any_of(leaves.begin(), leaves.end(), [](const auto& interval) { return interval.size() != 1; }))
    refuse_optimizer("the group has logical ranks", "use a group of init_process_group, or train::run");
  if (options.backward_passes_per_step < 1) {
    refuse_optimizer("backward_passes_per_step is " + std::to_string(options.backward_passes_per_step),
                     "give the number of backwards before a step: 1 or more");
  }
  const double predivide = options.gradient_predivide_factor;
  if (!(predivide > 0) || !std::isfinite(predivide)) {
    refuse_optimizer("gradient_predivide_factor is " + std::to_string(predivide),
                     "give a positive number, or leave it out");
  }
  if (options.op > GradientOp::kAdasum)
    refuse_optimizer("there is no operation " + std::to_string(static_cast<int>(options.op)),
                     "use GradientOp::kAverage, kSum or kAdasum");
  if (predivide != 1 && options.op != GradientOp::kAverage)
    refuse_optimizer("gradient_predivide_factor is for averages",
                     "leave it out, or use GradientOp::kAverage");
  if (options.fusion_threshold_mb < 1) refuse_optimizer("fusion_threshold_mb is 0", "give at least 1 MiB");
  if (options.stall_warning < Duration::zero())
    refuse_optimizer("stall_warning is negative", "give 0 for none");
  if (options.op == GradientOp::kAdasum) check_adasum_ranks(group->size());
  return group;
}

std::vector<ReducedParameter> checked(const std::vector<NamedTensor>& parameters, torch::Device device) {
  std::vector<ReducedParameter> found = reduced_parameters(parameters, device);
  if (found.empty())
    refuse_optimizer("none of its parameters requires a gradient", "use the optimizer as it is");
  return found;
}

BucketOptions bucket_options(const DistributedOptimizerOptions& options) {
  BucketOptions buckets;
  buckets.cap_bytes = options.fusion_threshold_mb << 20;
  return buckets;
}

const char* name_of(GradientOp op) {
  return op == GradientOp::kAverage ? "average" : op == GradientOp::kSum ? "sum" : "adasum";
}

std::vector<Fact> facts_of(const std::vector<ReducedParameter>& parameters,
                           const DistributedOptimizerOptions& options) {
  const auto number = [](auto value) { return std::to_string(value); };
  std::vector<Fact> facts{{"option op", name_of(options.op)},
                          {"option compression", options.compression == Compression::kFp16 ? "fp16" : "none"},
                          {"option backward_passes_per_step", number(options.backward_passes_per_step)},
                          {"option gradient_predivide_factor", number(options.gradient_predivide_factor)},
                          {"option sparse_as_dense", options.sparse_as_dense ? "true" : "false"},
                          {"option fusion_threshold_mb", number(options.fusion_threshold_mb)}};
  for (const ReducedParameter& parameter : parameters)
    facts.push_back(fact_of("parameter", {parameter.name, parameter.tensor}));
  return facts;
}

std::vector<AdasumPart> parts_of(const Bucket& bucket, const std::vector<ReducedParameter>& parameters) {
  std::vector<AdasumPart> parts;
  for (const Bucket::Member& member : bucket.members)
    parts.push_back({static_cast<std::int64_t>(member.offset), parameters[member.item].tensor.numel()});
  return parts;
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const NamedParameters& named_parameters,
                                           std::shared_ptr<ProcessGroup> group,
                                           DistributedOptimizerOptions options)
    : DistributedOptimizer(optimizer, by_name(optimizer, named_parameters), std::move(group),
                           std::move(options)) {}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           std::shared_ptr<ProcessGroup> group,
                                           DistributedOptimizerOptions options)
    : DistributedOptimizer(optimizer, by_place(optimizer), std::move(group), std::move(options)) {}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           std::vector<NamedTensor> parameters,
                                           std::shared_ptr<ProcessGroup> group,
                                           DistributedOptimizerOptions options)
    : optimizer_(optimizer),
      group_(checked(std::move(group), options)),
      options_(std::move(options)),
      wrapped_(parameters),
      parameters_(checked(parameters, device_of(*group_))),
      buckets_(make_buckets(bucket_items(parameters_), bucket_options(options_))),
      streams_(device_of(*group_)),
      memory_((check_agreement(group_->host_group(), facts_of(parameters_, options_)), group_), buckets_, 0),
      laid_(memory_.lay_out(buckets_, parameters_, 0)),
      passes_(parameters_.size()),
      taken_(parameters_.size()),
      hooks_(parameters_, [this](std::size_t index) { gradient_ready(index); }) {}

DistributedOptimizer::~DistributedOptimizer() {
  if (std::none_of(launched_.begin(), launched_.end(), [](const auto& bucket) { return bool(bucket); }))
    return;
  try {  // others may be at what it sends
    if (group_->abort_reason().empty()) group_->abort("a DistributedOptimizer ended in the middle of a step");
    group_->await_quiet();
  } catch (const std::exception&) {
    // Whoever uses the group next is told.
    keep_value_for_good(std::make_pair(std::move(launched_), laid_.flat));
  }
}

/// A gradient was added to the parameter's.
void DistributedOptimizer::gradient_ready(std::size_t index) {
  const ReducedParameter& parameter = parameters_[index];
  try {
    const torch::NoGradGuard no_grad;
    if (passes_[index] == options_.backward_passes_per_step) {
      throw BadConfig(
          "the gradient of " + parameter.name + " came once more before a step",
          "backward_passes_per_step is " + std::to_string(options_.backward_passes_per_step),
          "call step() of the DistributedOptimizer, or synchronize(), after so many backwards, or give "
          "a larger number");
    }
    if (synchronized_) {
      throw BadConfig("the gradient of " + parameter.name + " came after synchronize()",
                      "it would be added to what all ranks have, on this rank alone",
                      "call step() or zero_grad() of the DistributedOptimizer before the next backward");
    }
    if (!begun_) begin();
    if (++passes_[index] == options_.backward_passes_per_step && !is_adasum()) take(index);
  } catch (...) {
    fail();
  }
}

void DistributedOptimizer::begin() {
  begun_ = true;
  ++reductions_;
  order_.begin(buckets_);
  launched_.assign(buckets_.size(), nullptr);
  taken_.assign(parameters_.size(), false);
}

void DistributedOptimizer::take(std::size_t index) {
  const ReducedParameter& parameter = parameters_[index];
  const auto refuse_it = [&](const char* why, const char* todo) {
    throw BadConfig("the gradient of " + parameter.name + " cannot be reduced", why, todo);
  };
  const torch::Tensor& view = laid_.views[index];
  torch::Tensor& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) {
    view.zero_();
  } else {
    if (gradient.requires_grad())
      refuse_it("it has a graph of its own", "do not give create_graph to backward()");
    if (gradient.is_sparse() && !options_.sparse_as_dense)
      refuse_it("it is sparse", "set sparse_as_dense, or make the layer with sparse(false)");
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    if (gradient.data_ptr() != view.data_ptr() || !same_layout(gradient, view)) put(view, gradient);
  }
  gradient = view;
  done(index);
}

void DistributedOptimizer::done(std::size_t index) {
  taken_[index] = true;
  streams_.before_default();  // what is reduced may have been computed on several streams
  order_.done(parameters_[index].bucket, true, [this](std::size_t bucket) {
    streams_.on_default([&] { launched_[bucket] = launch(bucket); });
  });
}

std::function<void()> DistributedOptimizer::launch(std::size_t bucket) {
  const torch::Tensor flat = laid_.flat[bucket];
  const double predivide = group_->size() == 1 ? 1 : options_.gradient_predivide_factor;
  if (predivide != 1) flat.div_(predivide);
  const bool compresses = options_.compression == Compression::kFp16 && flat.element_size() > 2;
  const torch::Tensor sent = compresses ? flat.to(torch::kFloat16) : flat;
  const auto decompress = [flat, sent, compresses] {
    if (compresses) flat.copy_(sent);
  };
  if (group_->size() == 1) return decompress;
  if (is_adasum()) {
    auto round = std::make_shared<AdasumRound>(*group_, sent, parts_of(buckets_[bucket], parameters_));
    return [this, round, decompress] {
      round->finish([this](collectives::Work& work, int from) { wait(work, from); });
      decompress();
    };
  }
  const bool averages = options_.op == GradientOp::kAverage;
  auto work =
      group_->all_reduce(buffer_of(sent), averages && predivide == 1 ? ReduceOp::kAvg : ReduceOp::kSum);
  return [this, work, flat, decompress, predivide] {
    wait(*work, -1);
    decompress();
    if (predivide != 1) flat.mul_(predivide / group_->size());
  };
}

/// Waits for what was launched, in its order.
void DistributedOptimizer::finish() {
  streams_.on_default([this] {
    for (const auto& bucket : launched_) bucket();
  });
  if (&group_->host_group() != group_.get()) {  // a wait was the stream's, and not the host's
    streams_.synchronize();
    group_->throw_if_aborted();
  }
  launched_.clear();
  begun_ = false;
  passes_.assign(parameters_.size(), 0);
}

void DistributedOptimizer::synchronize() {
  if (is_adasum() || synchronized_) return;
  try {
    check_hooks();
    check_comes_once();
    const torch::NoGradGuard no_grad;
    if (!begun_) begin();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!taken_[i]) take(i);
    }
    finish();
  } catch (...) {
    fail();
  }
  synchronized_ = true;
}

torch::Tensor DistributedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  if (is_adasum()) return step_adasum(closure);
  const auto reduce = [this] {
    if (reduces_) {
      synchronize();
    } else if (begun_) {
      throw BadConfig("cannot step in skip_synchronize", "gradients are on their way",
                      "call synchronize() before it");
    }
  };
  torch::Tensor loss;
  if (closure) {
    loss = optimizer_.step([&] {
      torch::Tensor value = closure();
      is_spent_ = false;
      reduce();
      synchronized_ = false;  // it may be called again
      return value;
    });
  } else {
    reduce();
    loss = optimizer_.step();
  }
  synchronized_ = false;
  is_spent_ = true;
  return loss;
}

/// The optimizer steps on this rank's gradients, and what it changed is reduced.
torch::Tensor DistributedOptimizer::step_adasum(const torch::optim::Optimizer::LossClosure& closure) {
  torch::Tensor loss;
  try {
    check_hooks();
    if (!closure) check_comes_once();
    {
      const torch::NoGradGuard no_grad;
      starts_.resize(parameters_.size());
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const torch::Tensor& parameter = parameters_[i].tensor;
        if (starts_[i].defined()) {
          starts_[i].copy_(parameter);
        } else {
          starts_[i] = parameter.detach().clone();
        }
      }
    }
    loss = closure ? optimizer_.step(closure) : optimizer_.step();
    const torch::NoGradGuard no_grad;
    if (!begun_) begin();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      put(laid_.views[i], parameters_[i].tensor.detach() - starts_[i]);
      done(i);
    }
    finish();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].tensor.copy_(starts_[i].add_(laid_.views[i]));
  } catch (...) {
    fail();
  }
  is_spent_ = true;
  return loss;
}

void DistributedOptimizer::zero_grad() {
  if (begun_) {
    throw BadConfig("cannot zero gradients", "a backward ran, and they are on their way",
                    "call step() or synchronize() before zero_grad()");
  }
  optimizer_.zero_grad();
  synchronized_ = false;
  is_spent_ = false;
}

DistributedOptimizer::SkipSynchronize DistributedOptimizer::skip_synchronize() {
  if (is_adasum()) {
    throw BadConfig("cannot skip the synchronisation", "Adasum is of what a step changes, and belongs to it",
                    "use GradientOp::kAverage or kSum");
  }
  return SkipSynchronize(*this);
}

void DistributedOptimizer::set_backward_passes_per_step(int passes) {
  const auto refuse_it = [&](const char* why, const char* todo) {
    throw BadConfig("cannot set backward_passes_per_step to " + std::to_string(passes), why, todo);
  };
  if (passes < 1) refuse_it("a step needs a backward", "give 1 or more");
  if (begun_) refuse_it("a backward ran since the last step", "call it behind step()");
  options_.backward_passes_per_step = passes;
}

/// As Work::wait, and says who is missing meanwhile. `from`: whose message it is, where that is known.
void DistributedOptimizer::wait(collectives::Work& work, int from) const {
  const bool on_device = &group_->host_group() != group_.get();
  if (on_device || options_.stall_warning == Duration::zero()) return work.wait();
  for (Duration waited = options_.stall_warning; !work.wait_for(options_.stall_warning);
       waited += options_.stall_warning) {
    std::vector<int> missing = collectives::missing_ranks(work);
    if (missing.empty() && from >= 0) missing.push_back(from);
    const std::string who = missing.empty() ? "the others" : collectives::name_ranks(missing);
    const std::string text = "rank " + std::to_string(group_->rank()) + " has waited " +
                             std::to_string(std::llround(to_millis(waited))) + " ms for " + who +
                             " in reduction " + std::to_string(reductions_) + " of a DistributedOptimizer";
    options_.on_stall ? options_.on_stall(text) : log(LogLevel::kWarning, text);
  }
}

void DistributedOptimizer::check_hooks() const {
  if (const auto lost = hooks_.lost(parameters_)) {
    throw BadConfig(
        "parameter " + parameters_[*lost].name + " is not reduced",
        "its data were replaced after the DistributedOptimizer was made, as torch::load and to() do",
        "load and convert before, or make it again; copy_ into a parameter is fine");
  }
}

/// One step more than the others take would meet their next one, and from there on gradients of different
/// steps would be added without a word.
void DistributedOptimizer::check_comes_once() const {
  if (begun_ || !is_spent_) return;
  throw BadConfig(
      "cannot step a second time",
      "neither a backward nor zero_grad() came since reduction " + std::to_string(reductions_) +
          ", whose gradients it would reduce again",
      "step as often on every rank; call zero_grad() of the DistributedOptimizer before a step that a "
      "rank has no gradients for");
}

/// Ends the reduction with what was thrown. Nobody waits for a rank that failed by itself.
void DistributedOptimizer::fail() {
  try {
    throw;
  } catch (const std::exception& error) {
    if (group_->abort_reason().empty())
      group_->abort("rank " + std::to_string(group_->rank()) + ": " + error.what());
    try {
      group_->await_quiet();
    } catch (const std::exception&) {
      // What was thrown first is what counts.
      keep_value_for_good(std::move(launched_));
    }
    launched_.clear();
    begun_ = false;
    passes_.assign(parameters_.size(), 0);
    throw;
  }
}

}  // namespace troupe::train
