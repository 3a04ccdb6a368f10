/// What FullyShardedDataParallel does, whatever the type of its module.
///
/// A unit is gathered when an operator first uses one of its parameters (storage_watch.hpp), in the forward
/// and again in the backward, and is freed when another one is gathered: one unit is whole at a time, and the
/// root. A unit's gradients go through a flat tensor that is reduced to the ranks' shards as soon as all are
/// in; a callback of the autograd engine closes the backward.
///
/// Over a group of GPUs units are gathered and gradients reduced in device memory, and what else ranks tell
/// each other goes over its host_group(). The host waits for the device once, at the end of a backward or of
/// a forward without gradients: who returns from it knows that all went well.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "actors/ddp/device_streams.hpp"
#include "actors/ddp/flat_unit.hpp"
#include "actors/ddp/fsdp_options.hpp"
#include "actors/ddp/reduced_parameter.hpp"
#include "actors/ddp/storage_watch.hpp"
#include "actors/ddp/wrapped_parameters.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

/// Not thread-safe.
class FsdpCore {
 public:
  /// See FullyShardedDataParallel. `streams`: of which device they are; another than the group's in tests
  /// alone.
  FsdpCore(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<collectives::ProcessGroup> group,
           const FsdpOptions& options, std::optional<torch::Device> streams = {});
  ~FsdpCore();
  FsdpCore(const FsdpCore&) = delete;
  FsdpCore& operator=(const FsdpCore&) = delete;

  /// Around each forward of the module.
  void before_forward();
  /// `failed`: it threw.
  void after_forward(bool failed = false);
  /// `output` is of a forward: a backward through it begins there.
  void watch(const torch::Tensor& output);
  /// Whether backwards from here on are reduced. Returns what it was.
  bool require_sync(bool wanted) { return std::exchange(require_sync_, wanted); }

  std::vector<torch::Tensor> parameters() const;
  double clip_grad_norm_(double max_norm, double norm_type);
  StateDict full_state_dict(int root);
  void load_full_state_dict(const StateDict& state, int root);
  StateDict full_optimizer_state_dict(torch::optim::Optimizer& optimizer, int root);
  void load_full_optimizer_state_dict(torch::optim::Optimizer& optimizer, const StateDict& state, int root);
  StateDict local_state_dict();
  void load_local_state_dict(const StateDict& state);

  collectives::ProcessGroup& group() const { return *group_; }
  const std::vector<FlatUnit>& units() const { return units_; }
  std::size_t whole_bytes() const;
  std::size_t max_whole_bytes() const { return max_whole_bytes_; }

 private:
  class Backward;
  struct Self;
  /// What a rank did, to be compared: the same on every rank.
  struct Event {
    bool is_reduction = false;
    std::size_t unit = 0;
  };

  void use(const std::vector<StorageUse>& uses);
  [[noreturn]] void refuse_use(const StorageUse& use) const;
  void make_whole(const std::vector<std::size_t>& units);
  void free_units();
  bool begin_backward();
  void gradient_ready(std::size_t index);
  void take(std::size_t index);
  void reduce(std::size_t unit);
  void finish_backward();
  void interrupted(std::uint64_t backward);
  [[noreturn]] void fail();
  void reset();
  void free_or_abandon();
  void abandon();
  void await_device() const;
  void check_events();
  std::string text_of(const std::vector<Event>& events) const;
  void mark_gradients();
  void forget_gradients();
  void check_parameters() const;
  void check_idle(const char* call) const;
  std::string layout() const;
  FlatUnit* unit_of(const torch::Tensor& shard);
  std::vector<FlatUnit*> units_of(torch::optim::Optimizer& optimizer, const char* call);

  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<collectives::ProcessGroup> group_;
  collectives::ProcessGroup& host_;  ///< may be *group_
  FsdpOptions options_;
  DeviceStreams streams_;
  std::vector<NamedTensor> kept_whole_;       ///< parameters without a gradient, and buffers
  std::vector<ReducedParameter> parameters_;  ///< the sharded ones; `bucket` is their unit
  std::unordered_set<const void*> known_;     ///< those
  WrappedParameters wrapped_;
  std::vector<FlatUnit> units_;
  std::optional<std::size_t> root_;      ///< the root's unit, if it has parameters
  std::vector<torch::Tensor> not_here_;  ///< by parameter: its `.grad`, every use of which is an error

  bool require_sync_ = true;
  bool synchronized_ = true;  ///< of the last forward that wanted gradients
  bool in_forward_ = false;
  bool trains_ = false;                           ///< the last forward wanted gradients
  bool autocast_cached_ = false;                  ///< before it
  std::optional<std::size_t> last_used_;          ///< unit of this forward or backward
  std::array<std::vector<std::size_t>, 2> next_;  ///< forward, backward; by unit: the one used after it
  std::size_t max_whole_bytes_ = 0;

  /// The backward's number; 0: there is none. Another thread may give it up.
  std::atomic<std::uint64_t> under_way_{0};
  std::atomic<bool> given_up_{false};  ///< another thread did, and what is left of it is there
  std::uint64_t backwards_ = 0;        ///< begun so far
  std::vector<bool> seen_;             ///< by parameter: its gradient is in
  std::vector<std::size_t> missing_;   ///< by unit: gradients that are not in yet
  std::vector<bool> reduced_;          ///< by unit, in this backward
  std::optional<std::size_t> reducing_;
  std::vector<Event> events_;  ///< since they were last compared

  std::shared_ptr<Self> self_;
  std::optional<GradientHooks> hooks_;
};

}  // namespace troupe::train
