#include "actors/ddp/fsdp_core.hpp"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <sstream>

#include "actors/ddp/agreement.hpp"
#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/step_header.hpp"
#include "actors/ddp/unit_plan.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);
const char* const kMakeAfter =
    "make the optimizer after wrapping, over fsdp.parameters(), and zero and clip by these";

/// The sharded parameters; throws for what this rank alone can tell.
std::vector<ReducedParameter> sharded_parameters(const std::shared_ptr<torch::nn::Module>& module,
                                                 const collectives::ProcessGroup& group) {
  std::vector<ReducedParameter> found =
      reduced_parameters(once_each(module->named_parameters()), device_of(group));
  if (found.empty()) {
    throw BadConfig("cannot shard the module", "none of its parameters requires a gradient",
                    "use the module as it is");
  }
  return found;
}

std::vector<NamedTensor> named(const std::vector<ReducedParameter>& parameters) {
  std::vector<NamedTensor> found;
  for (const ReducedParameter& parameter : parameters) found.push_back({parameter.name, parameter.tensor});
  return found;
}

std::vector<PlannedUnit> plan(const torch::nn::Module& module,
                              const std::vector<ReducedParameter>& parameters, const FsdpOptions& options) {
  std::vector<std::string> modules, containers;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    modules.push_back(item.key());
    const torch::nn::Module& one = *item.value();
    if (one.as<torch::nn::ModuleListImpl>() != nullptr || one.as<torch::nn::ModuleDictImpl>() != nullptr)
      containers.push_back(item.key());
  }
  std::map<const void*, std::vector<std::string>> names;
  for (const auto& item : module.named_parameters())
    names[item.value().unsafeGetTensorImpl()].push_back(item.key());
  std::vector<PlannedParameter> planned;
  for (const ReducedParameter& parameter : parameters) {
    planned.push_back({names[parameter.tensor.unsafeGetTensorImpl()],
                       static_cast<std::size_t>(parameter.tensor.numel()),
                       torch::toString(parameter.tensor.scalar_type())});
  }
  return plan_units(modules, containers, planned, options);
}

}  // namespace

/// A core for callbacks that may outlive it.
struct FsdpCore::Self {
  explicit Self(FsdpCore* of) : core(of) {}
  std::mutex mutex;  ///< held while the core ends, or is told of a backward that did
  FsdpCore* core;
};

/// One backward, for the engine: its end is the call, or the death of the callback that was never called. On
/// a device it may die in the engine's thread, after the backward has thrown in the caller's.
class FsdpCore::Backward {
 public:
  Backward(std::weak_ptr<Self> self, std::uint64_t number) : self_(std::move(self)), number_(number) {}
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  ~Backward() {
    const auto self = self_.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex);
    if (self->core != nullptr) self->core->interrupted(number_);
  }
  void finish() {
    const auto self = std::exchange(self_, {}).lock();
    if (self && self->core != nullptr) self->core->finish_backward();
  }
  void forget() { self_.reset(); }

 private:
  std::weak_ptr<Self> self_;
  std::uint64_t number_;
};

FsdpCore::FsdpCore(std::shared_ptr<torch::nn::Module> module,
                   std::shared_ptr<collectives::ProcessGroup> group, const FsdpOptions& options,
                   std::optional<torch::Device> streams)
    : module_((check_wrappable(module, group), std::move(module))),
      group_(std::move(group)),
      host_(group_->host_group()),
      options_(options),
      streams_((
          check_devices(once_each(module_->named_parameters()), once_each(module_->named_buffers()), *group_),
          streams.value_or(device_of(*group_)))),
      parameters_(sharded_parameters(module_, *group_)),
      wrapped_(named(parameters_)),
      seen_(parameters_.size()),
      self_(std::make_shared<Self>(this)) {
  for (const ReducedParameter& parameter : parameters_) known_.insert(parameter.tensor.unsafeGetTensorImpl());
  const std::vector<PlannedUnit> units = plan(*module_, parameters_, options_);
  for (const NamedTensor& parameter : once_each(module_->named_parameters())) {
    if (!parameter.tensor.requires_grad()) kept_whole_.push_back(parameter);
  }
  for (const NamedTensor& buffer : once_each(module_->named_buffers())) kept_whole_.push_back(buffer);

  std::vector<Fact> facts{
      {"option sharding_strategy",
       options_.sharding_strategy == ShardingStrategy::kFullShard ? "kFullShard" : "kShardGradOp"},
      {"option prefetch", options_.prefetch ? "1" : "0"}};
  for (const PlannedUnit& unit : units) {
    for (const std::size_t i : unit.members) {
      Fact fact = fact_of("parameter", {parameters_[i].name, parameters_[i].tensor});
      fact.value += " in " + text_of_unit(unit.name);
      facts.push_back(std::move(fact));
    }
  }
  for (const NamedTensor& one : kept_whole_) facts.push_back(fact_of("tensor", one));
  check_agreement(host_, facts);

  const auto on_use = std::make_shared<const OnUse>([self = std::weak_ptr(self_)](const auto& uses) {
    if (const auto alive = self.lock(); alive && alive->core != nullptr) {
      alive->core->use(uses);
      return;
    }
    throw BadConfig("a sharded parameter is not there", "its FullyShardedDataParallel has ended",
                    "keep the wrapper as long as the module, or take full_state_dict() before its end");
  });
  units_.reserve(units.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::vector<NamedTensor> members;
    for (const std::size_t i : units[u].members) {
      parameters_[i].bucket = u;
      parameters_[i].member = members.size();
      members.push_back({parameters_[i].name, parameters_[i].tensor});
    }
    units_.emplace_back(units[u].name, std::move(members), group_, streams_);
    // At once: if the next one throws, the parameters of this one are gone, and whoever uses one is told.
    watch_storage(units_[u].flat(), on_use, u);
    for (const NamedTensor& member : units_[u].members()) mark_watched(member.tensor);
    if (units[u].name.empty()) root_ = u;
  }
  std::vector<torch::Tensor> whole;
  for (const NamedTensor& one : kept_whole_) whole.push_back(one.tensor);
  broadcast_tensors(*group_, whole, 0);

  hooks_.emplace(parameters_, [this](std::size_t index) { gradient_ready(index); });
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    not_here_.push_back(torch::zeros({1}, parameters_[i].tensor.device()));
    watch_storage(not_here_.back(), on_use, units_.size() + i);
    mark_watched(not_here_.back());
  }
  mark_gradients();
  missing_.resize(units_.size());
  for (auto& next : next_) next.assign(units_.size(), kNone);
}

FsdpCore::~FsdpCore() {
  {
    const std::lock_guard lock(self_->mutex);
    self_->core = nullptr;
  }
  self_.reset();
  forget_gradients();
  free_or_abandon();
}

/// Waits for what is under way of a group that is good.
void FsdpCore::free_or_abandon() {
  try {
    if (group_->abort_reason().empty()) return free_units();
  } catch (const std::exception&) {  // it was aborted just now
  }
  abandon();
}

void FsdpCore::mark_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.mutable_grad() = not_here_[i];
}

void FsdpCore::forget_gradients() {
  for (const ReducedParameter& parameter : parameters_) parameter.tensor.mutable_grad() = torch::Tensor();
}

void FsdpCore::check_parameters() const {
  const auto refuse = [](const std::string& name, const char* why) {
    throw BadConfig("parameter " + name + " is not sharded", why, "wrap the module again");
  };
  std::unordered_set<const void*> now;
  for (const NamedTensor& parameter : once_each(module_->named_parameters())) {
    if (!parameter.tensor.requires_grad()) continue;
    now.insert(parameter.tensor.unsafeGetTensorImpl());
    if (known_.count(parameter.tensor.unsafeGetTensorImpl()) == 0)
      refuse(parameter.name, "it was added, replaced or unfrozen after the module was wrapped");
  }
  for (const ReducedParameter& known : parameters_) {
    if (now.count(known.tensor.unsafeGetTensorImpl()) == 0)
      refuse(known.name, "it was removed or frozen after the module was wrapped");
  }
}

void FsdpCore::before_forward() {
  if (given_up_.exchange(false)) reset();
  check_parameters();
  check_idle("a forward");
  free_units();  // of a forward without a backward
  in_forward_ = true;
  trains_ = torch::GradMode::is_enabled();
  last_used_.reset();
  // Autocast would keep what it casts of every unit; with gradients the graph does, anyhow.
  autocast_cached_ = at::autocast::is_autocast_cache_enabled();
  if (!trains_) {
    at::autocast::set_autocast_cache_enabled(false);
    return;
  }
  synchronized_ = require_sync_;
  forget_gradients();
}

void FsdpCore::after_forward(bool failed) {
  if (std::exchange(in_forward_, false)) at::autocast::set_autocast_cache_enabled(autocast_cached_);
  last_used_.reset();
  if (failed) {
    free_or_abandon();  // what the forward threw says more
    return;
  }
  if (trains_) return;
  free_units();
  check_events();
  await_device();
}

void FsdpCore::watch(const torch::Tensor& output) {
  if (!output.requires_grad() || output.is_leaf()) return;
  output.register_hook([self = std::weak_ptr(self_)](const torch::Tensor&) {
    const auto alive = self.lock();
    if (alive && alive->core != nullptr && alive->core->under_way_ == 0) alive->core->begin_backward();
  });
}

/// Of an operator that must not use it.
void FsdpCore::refuse_use(const StorageUse& use) const {
  if (use.key >= units_.size()) {
    const ReducedParameter& parameter = parameters_[use.key - units_.size()];
    throw BadConfig("the .grad of parameter " + parameter.name + " of " +
                        text_of_unit(units_[parameter.bucket].name()) + " is not there",
                    "FullyShardedDataParallel keeps gradients in its shards", kMakeAfter);
  }
  const FlatUnit& unit = units_[use.key];
  const std::string what =
      "parameter " + unit.member_at(use.tensor.storage_offset()) + " of " + text_of_unit(unit.name());
  if (!in_forward_ && under_way_ == 0) {
    throw BadConfig(what + " is not there",
                    "an operator uses it outside of the wrapper's forward and backward",
                    "call fsdp->forward(), on all ranks; make the optimizer after wrapping, over "
                    "fsdp.parameters(); read and load weights by full_state_dict()");
  }
  throw BadConfig(
      what + " cannot be changed in place",
      use.operation + " writes what was gathered, which is freed after its use: no shard would have it",
      "leave it to the optimizer, change weights by load_full_state_dict(), leave max_norm out of "
      "embeddings, or set requires_grad to false before wrapping, which keeps it whole");
}

/// An operator is about to use parameters.
void FsdpCore::use(const std::vector<StorageUse>& uses) {
  const torch::NoGradGuard no_grad;
  std::vector<std::size_t> units;
  for (const StorageUse& use : uses) {
    if (use.key >= units_.size()) refuse_use(use);
    if (std::find(units.begin(), units.end(), use.key) == units.end()) units.push_back(use.key);
  }
  if (!in_forward_ && under_way_ == 0 && !begin_backward()) refuse_use(uses.front());
  for (const StorageUse& use : uses) {
    if (use.is_written) refuse_use(use);
  }
  if (std::all_of(units.begin(), units.end(), [this](std::size_t u) { return units_[u].is_whole(); })) return;
  if (in_forward_) {
    make_whole(units);
    return;
  }
  try {
    make_whole(units);
  } catch (...) {
    fail();
  }
}

/// Of the other units the root's alone stays whole.
void FsdpCore::make_whole(const std::vector<std::size_t>& units) {
  if (options_.sharding_strategy == ShardingStrategy::kFullShard) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (u != root_ && std::find(units.begin(), units.end(), u) == units.end()) units_[u].free();
    }
  }
  auto& next = next_[in_forward_ ? 0 : 1];
  for (const std::size_t unit : units) {
    if (units_[unit].is_whole()) continue;
    if (last_used_ && *last_used_ != unit) next[*last_used_] = unit;
    last_used_ = unit;
    events_.push_back({false, unit});
    units_[unit].gather();
  }
  const std::size_t following = next[*last_used_];
  if (options_.prefetch && following != kNone && following != root_) units_[following].begin_gather();
  max_whole_bytes_ = std::max(max_whole_bytes_, whole_bytes());
}

void FsdpCore::free_units() {
  for (FlatUnit& unit : units_) unit.free();
}

std::size_t FsdpCore::whole_bytes() const {
  std::size_t bytes = 0;
  for (const FlatUnit& unit : units_) bytes += unit.has_memory() ? unit.whole_bytes() : 0;
  return bytes;
}

/// False: no backward is under way in this thread.
bool FsdpCore::begin_backward() {
  if (given_up_.exchange(false)) reset();
  auto backward = std::make_shared<Backward>(self_, ++backwards_);
  try {
    torch::autograd::Engine::get_default_engine().queue_callback([backward] { backward->finish(); });
  } catch (const c10::Error&) {
    backward->forget();
    return false;
  }
  under_way_ = backwards_;
  last_used_.reset();
  seen_.assign(parameters_.size(), false);
  reduced_.assign(units_.size(), false);
  for (std::size_t u = 0; u < units_.size(); ++u) missing_[u] = units_[u].members().size();
  forget_gradients();
  return true;
}

void FsdpCore::gradient_ready(std::size_t index) {
  try {
    take(index);
  } catch (...) {
    fail();
  }
}

void FsdpCore::take(std::size_t index) {
  if (torch::GradMode::is_enabled()) {
    throw BadConfig("FullyShardedDataParallel has no second derivative",
                    "backward() was called with create_graph",
                    "leave create_graph out, or use DistributedDataParallel");
  }
  const torch::NoGradGuard no_grad;
  if (under_way_ == 0) begin_backward();
  const ReducedParameter& parameter = parameters_[index];
  torch::Tensor& gradient = parameter.tensor.mutable_grad();
  const auto refuse = [&](const char* why, const char* todo) {
    throw BadConfig("the gradient of " + parameter.name + " cannot be reduced", why, todo);
  };
  if (reduced_[parameter.bucket])
    refuse("it came once more when those of its unit were reduced",
           "run one backward, of the sum of the losses");
  FlatUnit& unit = units_[parameter.bucket];
  const bool is_last = !seen_[index] && missing_[parameter.bucket] == 1;
  // Each use of a parameter comes before its gradient, so the unit's are not needed beside the copy.
  if (is_last && !(gradient.defined() && gradient.is_alias_of(unit.flat()))) unit.free();
  if (gradient.defined()) {  // a function of the user's may give none
    if (gradient.is_sparse()) refuse("it is sparse", "use a dense gradient");
    unit.take(parameter.member, gradient);
    gradient = torch::Tensor();
  }
  if (seen_[index]) return;
  seen_[index] = true;
  --missing_[parameter.bucket];
  if (!is_last) return;
  unit.free();
  if (synchronized_) reduce(parameter.bucket);
}

/// One reduction at a time, so that two units' whole gradients are there at most.
void FsdpCore::reduce(std::size_t unit) {
  if (reducing_) units_[*reducing_].end_reduce();
  reducing_ = unit;
  reduced_[unit] = true;
  events_.push_back({true, unit});
  units_[unit].begin_reduce();
}

void FsdpCore::finish_backward() {
  try {
    const torch::NoGradGuard no_grad;
    free_units();
    if (synchronized_) {
      for (std::size_t u = 0; u < units_.size(); ++u) {
        if (!reduced_[u]) reduce(u);
      }
      units_[*std::exchange(reducing_, std::nullopt)].end_reduce();
      check_events();
      await_device();
      for (FlatUnit& unit : units_) unit.set_gradient();
    }
    under_way_ = 0;
    mark_gradients();
  } catch (...) {
    fail();
  }
}

std::string FsdpCore::text_of(const std::vector<Event>& events) const {
  std::string text;
  for (const Event& event : events)
    text += std::string(event.is_reduction ? "reduced " : "used ") + text_of_unit(units_[event.unit].name()) +
            '\n';
  return text;
}

/// Units of the same size would be taken one for another without a word.
void FsdpCore::check_events() {
  const std::vector<Event> events = std::exchange(events_, {});
  if (group_->size() == 1) return;
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const Event& event : events)
    hash = (hash ^ (event.unit * 2 + (event.is_reduction ? 1 : 0))) * 1099511628211ULL;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group_->size()));
  host_.all_gather(std::span(&hash, 1), all)->wait();
  const auto other = std::find_if(all.begin(), all.end(), [&](std::uint64_t h) { return h != all.front(); });
  if (other == all.end()) return;
  const int rank = static_cast<int>(other - all.begin());
  std::istringstream first(broadcast_text(host_, text_of(events), 0));
  std::istringstream second(broadcast_text(host_, text_of(events), rank));
  std::string mine, theirs;
  int at = 0;
  do {
    ++at;
    if (!std::getline(first, mine)) mine = "was through";
    if (!std::getline(second, theirs)) theirs = "was through";
  } while (mine == theirs);
  throw out_of_step(*group_,
                    "in use " + std::to_string(at) + " since they were last compared, rank 0 " + mine +
                        " and rank " + std::to_string(rank) + " " + theirs,
                    "use the same units in the same order on every rank");
}

/// The backward threw outside of here.
void FsdpCore::interrupted(std::uint64_t backward) {
  if (!under_way_.compare_exchange_strong(backward, 0)) return;
  group_->abort("rank " + std::to_string(group_->rank()) + ": a backward ended with an exception");
  // Another thread touches nothing but the group.
  if (device_of(*group_).is_cpu()) {
    reset();
  } else {
    given_up_ = true;
  }
}

/// Ends the backward with what was thrown. Nobody waits for a rank that failed by itself.
void FsdpCore::fail() {
  const std::exception_ptr thrown = std::current_exception();
  try {
    throw;
  } catch (const CollectiveAborted&) {
  } catch (const std::exception& error) {
    group_->abort("rank " + std::to_string(group_->rank()) + ": " + error.what());
  }
  reset();
  std::rethrow_exception(thrown);
}

/// REQUIRES: the group was aborted.
void FsdpCore::reset() {
  under_way_ = 0;
  events_.clear();
  reducing_.reset();
  abandon();
  mark_gradients();
}

/// Frees all that is of an aborted group, once nobody is at it any more.
void FsdpCore::abandon() {
  bool is_quiet = true;
  try {
    group_->await_quiet();
  } catch (const std::exception&) {  // what threw first is what is told
    is_quiet = false;
  }
  for (FlatUnit& unit : units_) unit.abandon(is_quiet);
}

/// A wait for an operation of GPUs is the stream's, which does not throw.
void FsdpCore::await_device() const {
  if (&host_ == group_.get()) return;
  streams_.synchronize();
  group_->throw_if_aborted();  // which is known before a kernel is stopped
}

std::vector<torch::Tensor> FsdpCore::parameters() const {
  std::vector<torch::Tensor> shards;
  for (const FlatUnit& unit : units_) shards.push_back(unit.shard());
  return shards;
}

double FsdpCore::clip_grad_norm_(double max_norm, double norm_type) {
  check_idle("clip_grad_norm_()");
  if (!(max_norm > 0) || !(norm_type > 0)) {
    throw BadConfig("cannot clip gradients",
                    "max_norm is " + std::to_string(max_norm) + " and norm_type " + std::to_string(norm_type),
                    "give both above 0");
  }
  const torch::NoGradGuard no_grad;
  const bool is_max = std::isinf(norm_type);
  double total = 0;
  for (FlatUnit& unit : units_) {
    const torch::Tensor& gradient = unit.shard().grad();
    if (!gradient.defined()) continue;
    const auto norm = torch::linalg_vector_norm(gradient, norm_type).item<double>();
    // std::max would lose a NaN.
    total = is_max ? (norm > total || std::isnan(norm) ? norm : total) : total + std::pow(norm, norm_type);
  }
  host_.all_reduce(std::span(&total, 1), is_max ? collectives::ReduceOp::kMax : collectives::ReduceOp::kSum)
      ->wait();
  if (!is_max) total = std::pow(total, 1 / norm_type);
  const double factor = max_norm / (total + 1e-6);
  if (factor >= 1) return total;
  for (FlatUnit& unit : units_) {
    torch::Tensor& gradient = unit.shard().mutable_grad();
    if (gradient.defined()) gradient.mul_(factor);
  }
  return total;
}

void FsdpCore::check_idle(const char* call) const {
  if (!in_forward_ && under_way_ == 0) return;
  throw BadConfig(std::string("cannot run ") + call,
                  in_forward_ ? "the wrapper is in a forward" : "the wrapper is in a backward",
                  "call it when that has returned");
}

}  // namespace troupe::train
