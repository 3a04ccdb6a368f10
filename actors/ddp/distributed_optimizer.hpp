/// Horovod's DistributedOptimizer: an optimizer of LibTorch's whose gradients are reduced over the ranks of a
/// process group before it steps. The module is not wrapped, and nothing is asked of its forward:
///
///   torch::optim::SGD sgd(net->parameters(), 0.01);
///   troupe::train::broadcast_parameters(*net, *group);
///   troupe::train::DistributedOptimizer optimizer(sgd, net->named_parameters(), group);
///   optimizer.zero_grad();
///   criterion(net->forward(x), y).backward();  // buckets of gradients are reduced meanwhile
///   optimizer.step();                          // waits for them, and steps `sgd`
///
/// docs/horovod.md compares it with Horovod's, name by name. DistributedDataParallel is for who reads `.grad`
/// behind backward().
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/ddp/bucket_memory.hpp"
#include "actors/ddp/buckets.hpp"
#include "actors/ddp/device_streams.hpp"
#include "actors/ddp/reduced_parameter.hpp"
#include "actors/ddp/wrapped_parameters.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

enum class GradientOp : std::uint8_t {
  kAverage,  ///< the mean over the ranks
  kSum,
  kAdasum  ///< of what the optimizer changes on each rank, not of gradients (adasum.hpp); 2^n ranks
};
enum class Compression : std::uint8_t {
  kNone,
  kFp16  ///< float32 and float64 travel, and are added, as float16
};

/// With Horovod's names and defaults, unless the comment says something else.
struct DistributedOptimizerOptions {
  Compression compression = Compression::kNone;
  /// Gradients of so many backwards add up on each rank before they are reduced.
  int backward_passes_per_step = 1;
  GradientOp op = GradientOp::kAverage;
  /// kAverage: gradients are divided by it before the sum, and by ranks / it after.
  double gradient_predivide_factor = 1;
  /// A sparse gradient is made dense; else it is an error.
  bool sparse_as_dense = false;
  /// Gradients are reduced in buckets of so many MiB, the first of 1 at most. (HOROVOD_FUSION_THRESHOLD)
  std::size_t fusion_threshold_mb = 25;
  /// Who has waited so long for the others names those that are missing, and again after as long. Zero:
  /// never. Less than the group's timeout, which ends the wait. (HOROVOD_STALL_CHECK_TIME_SECONDS, 60 there)
  Duration stall_warning = std::chrono::seconds(10);
  /// Takes the warning. Null: standard error.
  std::function<void(const std::string&)> on_stall{};
};

/// Not thread-safe. All ranks make it, synchronize and step in the same order. An exception of a backward, of
/// synchronize() or of step() that comes of a reduction aborts the group, so that no rank waits for this one.
class DistributedOptimizer {
 public:
  using NamedParameters = torch::OrderedDict<std::string, torch::Tensor>;

  /// Collective. Reduces those parameters of `optimizer` that require a gradient; names are for errors, and
  /// may be of more. `optimizer` and the group live longer. Throws BadConfig for options that make no sense,
  /// a parameter without a name, in two groups, or reduced by another wrapper, and where ranks differ.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedParameters& named_parameters,
                       std::shared_ptr<collectives::ProcessGroup> group,
                       DistributedOptimizerOptions options = {});
  /// Parameters are called by their place: "group 0, parameter 3".
  DistributedOptimizer(torch::optim::Optimizer& optimizer, std::shared_ptr<collectives::ProcessGroup> group,
                       DistributedOptimizerOptions options = {});
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// Ends the reduction: behind it every `.grad` is what all ranks have. What this rank has no gradient for
  /// counts as zeros. To clip, say; the step that follows does not reduce again. A backward between them is
  /// an error, and so is a second step with neither a backward nor zero_grad() since the first. Does nothing
  /// with kAdasum.
  void synchronize();
  /// synchronize(), unless it was called since the last step, and the optimizer's step. A closure's gradients
  /// are reduced each time it was called; its loss is not. LBFGS decides by the loss how often it calls it:
  /// return the mean over the ranks there, or ranks part.
  torch::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);
  /// The optimizer's. Throws BadConfig between a backward and the step or synchronize(): gradients are on
  /// their way then.
  void zero_grad();

  /// While it lives, step() reduces nothing.
  class SkipSynchronize {
   public:
    explicit SkipSynchronize(DistributedOptimizer& of)
        : of_(of), before_(std::exchange(of.reduces_, false)) {}
    ~SkipSynchronize() { of_.reduces_ = before_; }
    SkipSynchronize(const SkipSynchronize&) = delete;
    SkipSynchronize& operator=(const SkipSynchronize&) = delete;

   private:
    DistributedOptimizer& of_;
    bool before_;
  };
  /// Throws BadConfig with kAdasum.
  [[nodiscard]] SkipSynchronize skip_synchronize();

  /// From the next step on; the same on every rank. Throws BadConfig for less than 1, and between a backward
  /// and the step.
  void set_backward_passes_per_step(int passes);

  torch::optim::Optimizer& optimizer() { return optimizer_; }
  collectives::ProcessGroup& group() const { return *group_; }
  /// Names of the parameters of each bucket, in the order of reduction.
  std::vector<std::vector<std::string>> buckets() const { return names_of(buckets_, parameters_); }

 private:
  DistributedOptimizer(torch::optim::Optimizer& optimizer, std::vector<NamedTensor> parameters,
                       std::shared_ptr<collectives::ProcessGroup> group, DistributedOptimizerOptions options);

  bool is_adasum() const { return options_.op == GradientOp::kAdasum; }
  void gradient_ready(std::size_t index);
  void begin();
  void take(std::size_t index);
  void done(std::size_t index);
  std::function<void()> launch(std::size_t bucket);
  std::function<void()> launch_adasum(std::size_t bucket, const torch::Tensor& sent);
  void finish();
  torch::Tensor step_adasum(const torch::optim::Optimizer::LossClosure& closure);
  void wait(collectives::Work& work, int from) const;
  void check_hooks() const;
  void check_comes_once() const;
  [[noreturn]] void fail();

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<collectives::ProcessGroup> group_;
  DistributedOptimizerOptions options_;
  WrappedParameters wrapped_;
  std::vector<ReducedParameter> parameters_;
  std::vector<Bucket> buckets_;
  DeviceStreams streams_;
  BucketMemory memory_;
  BucketViews laid_;

  bool reduces_ = true;        ///< step() does
  bool synchronized_ = false;  ///< since the last step and zero_grad()
  bool is_spent_ = false;      ///< the last step used what there is: no zero_grad() since

  // Since the last reduction.
  std::uint64_t reductions_ = 0;  ///< begun so far
  bool begun_ = false;            ///< a gradient came
  std::vector<int> passes_;       ///< by parameter: gradients that came
  std::vector<bool> taken_;       ///< by parameter: its gradient is in the bucket
  LaunchOrder order_;
  std::vector<std::function<void()>> launched_;  ///< by bucket: waits, and leaves the result

  std::vector<torch::Tensor> starts_;  ///< kAdasum, by parameter: its value before the step
  GradientHooks hooks_;
};

}  // namespace troupe::train
