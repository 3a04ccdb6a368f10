#include "actors/train/engine/parameter_shards.hpp"

#include <algorithm>
#include <utility>

#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/kept_for_good.hpp"
#include "actors/ddp/optimizer_state.hpp"
#include "actors/ddp/unit_plan.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

using collectives::ReduceOp;

constexpr std::int64_t kThrough = -1;  ///< a round is

[[noreturn]] void refuse_job(std::string why, std::string todo) {
  throw BadConfig("cannot shard the job's parameters", std::move(why), std::move(todo));
}

void check_job(TrainingModel& model) {
  for (const TrainedBy& trained : model.optimizers()) {
    if (!steps_elementwise(*trained.optimizer))
      refuse_job("the optimizer" + (trained.name.empty() ? "" : " '" + trained.name + "'") +
                     " is none of SGD, Adam, AdamW, RMSprop and Adagrad, and may look across elements",
                 "use one of them, or leave .shard out");
  }
  if (model.setup().syncs_in_step())
    refuse_job("the model has a SyncBatchNorm over the job's logical ranks, whose leaves wait for each other",
               "use Shard::kOptimizer with it");
  for (const UserPart& part : model.setup().state.parts()) {
    if (part.name.starts_with("ema/"))
      refuse_job("the job has an average of its weights, which each trainer keeps whole",
                 "use Shard::kOptimizer with it, or leave ema() out");
  }
}

std::string text_of_event(std::int64_t what, const std::vector<ShardedUnit>& units) {
  if (what == kThrough) return "is through with its leaf";
  const auto unit = static_cast<std::size_t>(what / 2);
  if (what < 0 || unit >= units.size()) return "says what makes no sense";
  return (what % 2 == 1 ? "has the gradients of " : "uses ") + text_of_unit(units[unit].name());
}

}  // namespace

ParameterShards::ParameterShards(TrainingModel& model, TrainState& state, int shards,
                                 const FsdpOptions& options, const ReducerOptions& where,
                                 std::function<void(bool)> told)
    : model_((check_job(model), model)),
      state_(state),
      shards_(shards),
      frees_(options.sharding_strategy == ShardingStrategy::kFullShard),
      prefetches_(options.prefetch),
      told_(std::move(told)),
      parameters_(reduced_parameters(model.parameters(), where.device)),
      where_(where),
      streams_(where.streams.value_or(where.device)),
      self_(std::make_shared<Self>(Self{this})) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    index_.emplace(parameters_[i].tensor.unsafeGetTensorImpl(), i);
    const auto type = parameters_[i].tensor.scalar_type();
    if (type != torch::kFloat32 && type != torch::kFloat64)
      refuse_job("parameter " + parameters_[i].name + " is of type " + torch::toString(type),
                 "keep parameters in float, and compute in another type by precision()");
  }
  plan(options);
  hooks_.emplace(parameters_, [this](std::size_t index) { gradient_ready(index); });
}

ParameterShards::~ParameterShards() {
  self_->shards = nullptr;
  abandon_ahead();
}

void ParameterShards::plan(const FsdpOptions& options) {
  std::vector<std::string> modules, containers;
  for (const Setup::NamedModule& one : model_.setup().all_modules()) {
    modules.push_back(one.name);
    if (one.is_container) containers.push_back(one.name);
  }
  std::vector<PlannedParameter> planned;
  for (const ReducedParameter& one : parameters_)
    planned.push_back(
        {{}, static_cast<std::size_t>(one.tensor.numel()), torch::toString(one.tensor.scalar_type())});
  for (const NamedTensor& one : model_.setup().all_parameters()) {
    if (const auto at = index_.find(one.tensor.unsafeGetTensorImpl()); at != index_.end())
      planned[at->second].names.push_back(one.name);
  }
  const auto units = plan_units(modules, containers, planned, options);
  places_.resize(parameters_.size());
  for (const PlannedUnit& unit : units) {
    std::vector<NamedTensor> members;
    for (const std::size_t i : unit.members) {
      places_[i] = {units_.size(), members.size()};
      members.push_back({parameters_[i].name, parameters_[i].tensor});
    }
    if (unit.name.empty()) root_ = units_.size();
    units_.emplace_back(unit.name, std::move(members), shards_);
  }
  sums_.resize(units_.size());
}

void ParameterShards::attach(std::shared_ptr<collectives::ProcessGroup> group,
                             std::shared_ptr<collectives::ProcessGroup> gradients) {
  detach();
  group_ = std::move(group);
  data_ = gradients ? std::move(gradients) : group_;
  through_host_ = where_.through_host || (data_ == group_ && !where_.device.is_cpu());
  if (!is_used()) return;
  const auto mine = group_->leaves();
  schedule_ = make_fold_schedule(mine, shards_);
  nodes_.clear();
  partials_.clear();
  for (const auto& interval : leaves()) {
    const auto nodes = collectives::canonical_nodes(interval, shards_);
    partials_.push_back(static_cast<int>(nodes.size()));
    nodes_.insert(nodes_.end(), nodes.begin(), nodes.end());
  }
  const int ranks = group_->size();
  by_ranks_ = static_cast<int>(nodes_.size()) == ranks &&
              collectives::fold_plan(nodes_, shards_) ==
                  collectives::fold_plan(collectives::rank_leaves(ranks), ranks);
  if (!cut_) return;
  for (ShardedUnit& unit : units_) unit.cut(mine);
}

void ParameterShards::detach() {
  if (group_) abandon();
  of_steps_ = of_evaluations_ = {};  // who joins has noted nothing
  data_.reset();
  group_.reset();
}

// Steps.

void ParameterShards::begin_step() {
  cut();
  free_units();
  failure_ = nullptr;
  drop_gradients();
  std::vector<std::int64_t> counts;
  for (const auto& interval : leaves()) counts.push_back(interval.size());
  begin_rounds(std::move(counts), of_steps_);
}

void ParameterShards::begin_leaf() {
  group_->throw_if_aborted();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    sums_[u].arrays.resize(static_cast<std::size_t>(schedule_.partials + schedule_.scratch));
    sums_[u].seen.assign(units_[u].members().size(), false);
    sums_[u].missing = units_[u].members().size();
  }
  trains_ = true;
  begin_round();
}

void ParameterShards::end_leaf() {
  rethrow_failure();
  trains_ = false;
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!sums_[places_[i].unit].seen[places_[i].member] && sums_[places_[i].unit].missing > 0)
      missing.push_back(parameters_[i].name);
  }
  if (!missing.empty())
    throw BadConfig("parameters without a gradient: " + listed(missing), "the loss does not depend on them",
                    "use them in forward, or set requires_grad to false");
  if (!is_last_round()) {
    const torch::NoGradGuard no_grad;
    for (std::size_t u = 0; u < units_.size(); ++u) fold(u);
  }
  end_round();
}

void ParameterShards::rethrow_failure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ParameterShards::begin_rounds(std::vector<std::int64_t> counts, GatherOrder& order) {
  counts_ = std::move(counts);
  order_ = &order;
  order_->begin();
  round_ = 0;
  rounds_ = *std::max_element(counts_.begin(), counts_.end());
}

void ParameterShards::begin_round() {
  computes_ = true;
}

void ParameterShards::end_round() {
  announce(kThrough);
  settle_ahead();
  computes_ = false;
  if (frees_) free_units();
  ++round_;
}

void ParameterShards::other_rounds() {
  const torch::NoGradGuard no_grad;
  while (round_ < rounds_) {
    const std::int64_t what = told(kThrough);
    if (what == kThrough) {
      settle_ahead();
      ++round_;
      continue;
    }
    const auto unit = static_cast<std::size_t>(what / 2);
    TROUPE_ASSERT(what >= 0 && unit < units_.size(), "ranks of one job have the same units");
    if (what % 2 == 1) {
      reduce(unit);
    } else {
      gather(unit);
      gather_ahead();
      if (frees_) units_[unit].free();
    }
  }
  free_units();
}

void ParameterShards::broadcast(const torch::Tensor& bytes) {
  move(bytes, bytes, [](auto& group, const auto& from, const auto&) { return group.broadcast(from, 0); });
}

void ParameterShards::finish() {
  if (data_ == group_) return;
  streams_.synchronize();
  data_->throw_if_aborted();  // a wait for an operation of GPUs is the stream's, which does not throw
}

/// The first rank that has a leaf in this round.
int ParameterShards::leader() const {
  const auto at = std::find_if(counts_.begin(), counts_.end(), [this](auto count) { return count > round_; });
  return static_cast<int>(at - counts_.begin());
}

std::int64_t ParameterShards::told(std::int64_t what) {
  exchange(group_->broadcast(std::span(&what, 1), leader()));
  if (what == kThrough) order_->through();
  if (what >= 0 && what % 2 == 0) order_->gathered(static_cast<std::size_t>(what / 2));
  return what;
}

void ParameterShards::announce(std::int64_t what) {
  const std::int64_t theirs = told(what);
  if (theirs == what) return;
  throw BadConfig("the leaves of a step do not use the same units in the same order",
                  "rank " + std::to_string(group_->rank()) + " " + text_of_event(what, units_) +
                      " where rank " + std::to_string(leader()) + " " + text_of_event(theirs, units_),
                  "let every batch go through the same modules, or use Shard::kOptimizer");
}

void ParameterShards::exchange(const std::shared_ptr<collectives::Work>& work) {
  told_(true);
  work->wait();
  told_(false);
}

/// `into` may be `from`.
void ParameterShards::move(const torch::Tensor& from, const torch::Tensor& into, const Launch& launch) {
  end_move(begin_move(from, into, launch));
}

ParameterShards::Move ParameterShards::begin_move(const torch::Tensor& from, const torch::Tensor& into,
                                                  const Launch& launch) {
  const auto on_host = [](const torch::Tensor& of) {
    return torch::empty(of.sizes(), of.options().device(torch::kCPU));
  };
  Move one{from, into, {}, nullptr};
  if (through_host_) {
    one.back = into;
    one.from = on_host(from).copy_(from);
    one.into = into.is_same(from) ? one.from : on_host(into);
  }
  on_stream_of_data([&] { one.work = launch(*data_, buffer_of(one.from), buffer_of(one.into)); });
  return one;
}

void ParameterShards::end_move(const Move& move) {
  told_(true);
  try {
    on_stream_of_data([&] { move.work->wait(); });
  } catch (...) {
    try {
      data_->await_quiet();
    } catch (const std::exception&) {  // what threw first is told
      keep_value_for_good(move);
    }
    throw;
  }
  told_(false);
  if (move.back.defined()) torch::Tensor(move.back).copy_(move.into);
}

/// Operations on the host go by no stream.
template <class Body>
void ParameterShards::on_stream_of_data(Body&& body) const {
  if (data_ == group_ || through_host_) return body();
  streams_.on_default(body);
}

/// An operator is about to use parameters.
void ParameterShards::use(const std::vector<StorageUse>& uses) {
  if (quiet_) return;
  const torch::NoGradGuard no_grad;
  if (!computes_) refuse_use(uses.front());
  for (const StorageUse& one : uses) {
    if (one.is_written) refuse_use(one);
  }
  std::vector<std::size_t> wanted;
  for (const StorageUse& one : uses) {
    if (std::find(wanted.begin(), wanted.end(), one.key) == wanted.end()) wanted.push_back(one.key);
  }
  if (std::all_of(wanted.begin(), wanted.end(), [this](std::size_t u) { return units_[u].is_whole(); }))
    return;
  try {
    for (std::size_t u = 0; frees_ && u < units_.size(); ++u) {
      if (u != root_ && std::find(wanted.begin(), wanted.end(), u) == wanted.end()) units_[u].free();
    }
    for (const std::size_t unit : wanted) {
      if (units_[unit].is_whole()) continue;
      announce(static_cast<std::int64_t>(2 * unit));
      gather(unit);
      gather_ahead();
    }
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

void ParameterShards::refuse_use(const StorageUse& one) const {
  const ShardedUnit& unit = units_[one.key];
  const std::string what =
      "parameter " + unit.member_at(one.tensor.storage_offset()) + " of " + text_of_unit(unit.name());
  if (!computes_)
    throw BadConfig(what + " is not there", "the job uses it outside of its loss() and evaluate()",
                    "use it there, or in apply(), where each trainer has a part; or leave .shard out");
  throw BadConfig(what + " cannot be changed in place",
                  one.operation + " writes what was gathered, which is freed after its use",
                  "leave it to the optimizer, or set requires_grad to false");
}

ParameterShards::Gathering ParameterShards::begin_gather(std::size_t unit) {
  ShardedUnit& one = units_[unit];
  std::vector<std::size_t> counts;
  for (const auto& interval : leaves()) counts.push_back(one.elements(interval));
  Gathering begun{unit, one.memory(), {}};
  begun.move = begin_move(one.shard(), begun.memory, [&](auto& group, const auto& from, const auto& into) {
    return group.all_gather(from, into, counts);
  });
  return begun;
}

/// The unit that the ranks have agreed on.
void ParameterShards::gather(std::size_t unit) {
  if (ahead_ && ahead_->unit != unit) settle_ahead();
  if (ahead_) ++prefetched_.used;
  if (!ahead_) ahead_ = begin_gather(unit);
  end_move(ahead_->move);
  units_[unit].take(ahead_->memory);
  ahead_.reset();
}

void ParameterShards::gather_ahead() {
  if (const auto next = order_->next(); next && prefetches_) ahead_ = begin_gather(*next);
}

/// Nobody uses it: this step goes another way than the one before.
void ParameterShards::settle_ahead() {
  if (!ahead_) return;
  end_move(ahead_->move);
  ahead_.reset();
  ++prefetched_.dropped;
}

/// In the middle of a leaf, whose group is of no use any more.
void ParameterShards::abandon_ahead() {
  if (!ahead_) return;
  try {
    data_->abort("rank " + std::to_string(group_->rank()) + " gave a leaf up");
    data_->await_quiet();
  } catch (const std::exception&) {
    keep_value_for_good(*ahead_);
  }
  ahead_.reset();
}

void ParameterShards::free_units() {
  for (ShardedUnit& unit : units_) unit.free();
}

void ParameterShards::gradient_ready(std::size_t index) {
  if (!trains_) return;  // a backward that is none of ours
  try {
    const torch::NoGradGuard no_grad;
    take(index);
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

void ParameterShards::take(std::size_t index) {
  group_->throw_if_aborted();
  const Place& at = places_[index];
  Sums& sums = sums_[at.unit];
  torch::Tensor& slot = parameters_[index].tensor.mutable_grad();
  if (!slot.defined()) return;
  const torch::Tensor gradient = std::exchange(slot, torch::Tensor());
  if (sums.seen[at.member] || gradient.is_sparse() || gradient.requires_grad())
    throw BadConfig(
        "the gradient of " + parameters_[index].name + " cannot be reduced",
        sums.seen[at.member] ? "the loss runs backward more than once" : "it is sparse or has a graph",
        "return one dense loss; the trainer runs the backward");
  sums.seen[at.member] = true;
  const bool is_last = --sums.missing == 0;
  // Each use of a parameter comes before its gradient.
  if (is_last && frees_ && !gradient.is_alias_of(units_[at.unit].flat())) units_[at.unit].free();
  const LeafFold& how = schedule_.leaves[static_cast<std::size_t>(round_)];
  torch::Tensor& array = sums.arrays[static_cast<std::size_t>(how.array)];
  if (!array.defined()) array = units_[at.unit].zeros();
  torch::Tensor into = units_[at.unit].part(array, at.member);
  if (how.add) {
    into.add_(gradient);
  } else {
    put(into, gradient);
  }
  streams_.before_default();  // those of a unit may have been computed on several streams
  if (!is_last || !is_last_round()) return;
  if (frees_) units_[at.unit].free();
  fold(at.unit);
  announce(static_cast<std::int64_t>(2 * at.unit) + 1);
  reduce(at.unit);
}

void ParameterShards::fold(std::size_t unit) {
  auto& arrays = sums_[unit].arrays;
  for (const collectives::FoldStep& step : schedule_.leaves[static_cast<std::size_t>(round_)].after)
    arrays[static_cast<std::size_t>(step.into)].add_(arrays[static_cast<std::size_t>(step.from)]);
}

void ParameterShards::reduce(std::size_t unit) {
  torch::Tensor sum = summed(unit);
  sums_[unit].arrays.clear();
  units_[unit].gradient() = sum.div_(shards_);
}

/// Over all leaves, of this rank's shards.
torch::Tensor ParameterShards::summed(std::size_t unit) {
  const ShardedUnit& one = units_[unit];
  const auto& arrays = sums_[unit].arrays;
  std::vector<std::size_t> counts;
  for (const auto& interval : leaves()) counts.push_back(one.elements(interval));
  const auto rank = static_cast<std::size_t>(group_->rank());
  const auto mine = static_cast<std::int64_t>(counts[rank]);
  const auto options = one.flat().options();
  if (by_ranks_) {
    torch::Tensor sum = torch::empty({mine}, options);
    move(arrays.front(), sum, [&](auto& group, const auto& from, const auto& into) {
      return group.reduce_scatter(from, into, counts, ReduceOp::kSum);
    });
    return sum;
  }
  // Every rank's partial sums of these shards; then up the leaves' tree.
  torch::Tensor packed = arrays.front();
  if (schedule_.partials > 1) {
    std::vector<torch::Tensor> pieces;
    std::int64_t begin = 0;
    for (const std::size_t count : counts) {
      for (int p = 0; p < schedule_.partials; ++p)
        pieces.push_back(
            arrays[static_cast<std::size_t>(p)].narrow(0, begin, static_cast<std::int64_t>(count)));
      begin += static_cast<std::int64_t>(count);
    }
    packed = torch::cat(pieces);
  }
  std::vector<std::size_t> from_counts;
  for (const int partials : partials_)
    from_counts.push_back(static_cast<std::size_t>(partials) * counts[rank]);
  for (std::size_t& count : counts) count *= static_cast<std::size_t>(schedule_.partials);
  const torch::Tensor all = torch::empty({mine * static_cast<std::int64_t>(nodes_.size())}, options);
  move(packed, all, [&](auto& group, const auto& from, const auto& into) {
    return group.all_to_all(from, counts, into, from_counts);
  });
  for (const collectives::FoldStep& step : collectives::fold_plan(nodes_, shards_))
    all.narrow(0, step.into * mine, mine).add_(all.narrow(0, step.from * mine, mine));
  return all.narrow(0, 0, mine).clone();
}

void ParameterShards::abandon() {
  computes_ = trains_ = false;
  failure_ = nullptr;
  abandon_ahead();
  if (!cut_) return;
  free_units();
  drop_gradients();
}

// Evaluations.

void ParameterShards::begin_evaluation(std::int64_t pieces) {
  cut();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group_->size()));
  exchange(group_->all_gather(std::span(&pieces, 1), std::span(counts)));
  begin_rounds(std::move(counts), of_evaluations_);
}

void ParameterShards::end_evaluation() {
  other_rounds();
  finish();
}

}  // namespace troupe::train
