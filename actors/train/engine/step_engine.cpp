#include "actors/train/engine/step_engine.hpp"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "actors/train/engine/leaf_relay.hpp"
#include "actors/train/job/leaf_random.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"

namespace troupe::train {
namespace {

/// Memory for a gradient, laid out as the reducer lays them out.
torch::Tensor gradient_like(const torch::Tensor& parameter) {
  const auto options = torch::TensorOptions().dtype(parameter.scalar_type()).device(parameter.device());
  return parameter.is_non_overlapping_and_dense()
             ? torch::empty_strided(parameter.sizes(), parameter.strides(), options)
             : torch::empty(parameter.sizes(), options);
}

/// `bytes` lie as the tensor does.
void copy_bytes(torch::Tensor& into, std::span<const std::byte> bytes) {
  torch::Tensor host = into.is_cpu() ? into : torch::empty_like(into, torch::TensorOptions(torch::kCPU));
  std::memcpy(host.data_ptr(), bytes.data(), bytes.size());
  if (!into.is_cpu()) into.copy_(host);
}

ReducerOptions reducer_options(const EngineOptions& options) {
  ReducerOptions reducer = options.reducer;
  reducer.device = options.device;
  return reducer;
}

/// The batch in memory of its own.
data::Batch copy_of(const data::Batch& batch) {
  data::Batch copy = batch;
  if (copy.input.defined()) copy.input = copy.input.clone();
  if (copy.target.defined()) copy.target = copy.target.clone();
  for (auto& [name, tensor] : copy.others) tensor = tensor.clone();
  return copy;
}

/// Gathers over the leaves of a job by a call.
class Calling final : public InStep {
 public:
  using Gather = std::function<torch::Tensor(const torch::Tensor&)>;
  Calling(int leaves, Gather gather) : leaves_(leaves), gather_(std::move(gather)) {}
  std::int64_t parts() const override { return leaves_; }
  torch::Tensor gather(const torch::Tensor& mine) override { return gather_(mine); }

 private:
  const int leaves_;
  const Gather gather_;
};

}  // namespace

void check_leaves_in_step(torch::Device device, int leaves) {
  if (device.is_cpu() || leaves <= 1) return;
  throw BadConfig(
      "a trainer on a GPU cannot compute " + std::to_string(leaves) + " leaves that wait for each other",
      "the model has a SyncBatchNorm over the job's logical ranks",
      "use as many trainers as logical ranks (also min_trainers), or train on the CPU");
}

StepEngine::StepEngine(std::unique_ptr<TrainingModel> model, EngineOptions options)
    : model_(std::move(model)),
      options_(options),
      state_(*model_),
      loss_check_(*model_),
      loss_state_(model_->buffers(), model_->setup().state, options.device),
      reducer_(model_->parameters(), options.logical_ranks, reducer_options(options)),
      in_step_(model_->setup().syncs_in_step()),
      together_(in_step_ && options.device.is_cpu() && options.logical_ranks > 1),
      results_(options.device),
      committed_(loss_state_.memory()),
      next_(loss_state_.memory()) {
  for (const NamedTensor& parameter : model_->parameters()) parameters_.push_back(parameter.tensor);
  if (options.shard_optimizer)
    shards_.emplace(*model_, state_, options.logical_ranks, [this](bool begins) { told_(begins); });
  if (options.shard_parameters)
    pieces_.emplace(*model_, state_, options.logical_ranks, *options.shard_parameters,
                    reducer_options(options), [this](bool begins) { told_(begins); });
}

StepEngine::~StepEngine() = default;

void StepEngine::attach(std::shared_ptr<collectives::ProcessGroup> group,
                        std::shared_ptr<collectives::ProcessGroup> gradients) {
  abandon_step();
  if (shards_) shards_->attach(group);
  if (pieces_) pieces_->attach(group, gradients);
  group_ = std::move(group);
  reducer_.detach();
  if (!is_in_pieces()) reducer_.attach(group_, std::move(gradients));
}

void StepEngine::detach() {
  abandon_step();
  reducer_.detach();
  if (shards_) shards_->detach();
  if (pieces_) pieces_->detach();
  group_.reset();
}

/// Runs a piece of a step; whatever it throws, the step is given up. An error of this rank alone aborts the
/// group.
template <class Body>
auto StepEngine::guarded(Body&& body) {
  try {
    return body();
  } catch (const CollectiveAborted&) {
    abandon_step();
    throw;
  } catch (const std::exception& error) {
    group_->abort("rank " + std::to_string(group_->rank()) + " failed in step " +
                  std::to_string(global_step_) + ": " + error.what());
    abandon_step();
    throw;
  }
}

std::vector<double> StepEngine::run_step(std::uint64_t global_step, std::span<const LeafBatch> leaves) {
  begin_step(global_step);
  std::vector<double> losses;
  losses.reserve(leaves.size());
  for (const LeafBatch& leaf : leaves) run_leaf(leaf);
  for (const LeafResult& result : results()) losses.push_back(result.loss);
  finish_step();
  return losses;
}

void StepEngine::rehearse(std::unique_ptr<TrainingModel> fresh) {
  TROUPE_ASSERT(group_ && group_->leaves().size() > 0, "a rank rehearses its first leaf");
  abandon_step();
  rehearsal_.emplace(std::move(fresh), state_, options_.device);
}

void StepEngine::begin_step(std::uint64_t global_step, int epoch) {
  TROUPE_ASSERT(group_, "a step needs a group: attach first");
  if (phase_ != Phase::kIdle) abandon_step();
  global_step_ = global_step;
  epoch_ = epoch;
  next_leaf_ = group_->leaves().begin;
  loss_state_.save(committed_);
  if (shards_) shards_->shed_gathered();
  results_.begin();
  waiting_.clear();
  gathered_.clear();
  guarded([&] {
    if (in_step_) check_leaves_in_step(options_.device, group_->leaves().size());
    if (is_in_pieces()) return pieces_->begin_step();
    reducer_.begin_step();
  });
  phase_ = Phase::kLeaves;
}

void StepEngine::run_leaf(const LeafBatch& leaf) {
  TROUPE_ASSERT(phase_ == Phase::kLeaves && leaf.leaf == next_leaf_,
                "leaves run in the order of the interval");
  ++next_leaf_;
  if (is_in_pieces()) {
    return guarded([&] {
      compute_pieces(leaf);
      if (next_leaf_ == group_->leaves().end) pieces_->other_rounds();
    });
  }
  if (!together_) return guarded([&] { compute_leaf(leaf); });
  waiting_.push_back({leaf.leaf, copy_of(leaf.batch)});
  if (next_leaf_ == group_->leaves().end) guarded([&] { compute_together(); });
}

std::vector<LeafResult> StepEngine::results() {
  return guarded([&] {
    return results_.all([this] {
      if (std::string reason = group_->abort_reason(); !reason.empty())
        throw_error({ErrorCode::kAborted, "the process group was aborted", std::move(reason),
                     "form the next generation"});
    });
  });
}

Leaf StepEngine::leaf_at(int leaf) const {
  return {{static_cast<std::int64_t>(global_step_), epoch_, leaf},
          leaf_seed(options_.seed, RandomPurpose::kLeaf, global_step_, leaf)};
}

/// `between(loss)` is called after the forward.
template <class Between>
void StepEngine::forward_backward(const LeafBatch& leaf, Leaf& at, Between&& between) {
  seed_leaf(options_.seed, global_step_, leaf.leaf, options_.device);
  const LossCheck::Before before = loss_check_.before(leaf.batch, rehearses(leaf.leaf));
  const torch::Tensor loss = model_->loss(leaf.batch, at);
  end_forked_child();
  if (!loss.defined())
    throw BadConfig(std::string(part()) + "() returned no tensor", "it is undefined", "return the loss");
  if (loss.numel() != 1) {
    throw BadConfig("the loss is not a scalar", "the trainer runs backward from it",
                    "return its mean or sum");
  }
  if (at.weight() && !(std::isfinite(*at.weight()) && *at.weight() >= 0)) {
    throw BadConfig("a leaf's weight is " + std::to_string(*at.weight()), "it is a share of the step's mean",
                    "give a finite number that is not negative");
  }
  between(loss);
  try {
    (at.weight() ? loss * *at.weight() : loss).backward();
  } catch (...) {
    reducer_.rethrow_failure();
    throw;
  }
  loss_check_.check(before, leaf.batch);
}

void StepEngine::compute_leaf(const LeafBatch& leaf) {
  reducer_.begin_leaf();
  const InStep::Scope scope(
      in_step_ ? in_step_of(leaf.leaf, [this](const torch::Tensor& mine) { return exchange({mine}); })
               : nullptr);
  Leaf at = leaf_at(leaf.leaf);
  double value = 0;
  forward_backward(leaf, at, [&](const torch::Tensor& loss) {
    if (rehearses(leaf.leaf)) value = loss.item<double>();
    results_.add(loss, at);
    reducer_.begin_backward();
  });
  if (leaf.leaf == 0) loss_state_.save(next_);
  loss_state_.restore(committed_);
  reducer_.end_leaf();
  if (rehearses(leaf.leaf)) rehearse_leaf(leaf, value);
}

/// As compute_leaf.
void StepEngine::compute_pieces(const LeafBatch& leaf) {
  pieces_->begin_leaf();
  Leaf at = leaf_at(leaf.leaf);
  try {
    forward_backward(leaf, at, [&](const torch::Tensor& loss) { results_.add(loss, at); });
  } catch (...) {
    pieces_->rethrow_failure();
    throw;
  }
  if (leaf.leaf == 0) loss_state_.save(next_);
  loss_state_.restore(committed_);
  pieces_->end_leaf();
}

void StepEngine::rehearse_leaf(const LeafBatch& leaf, double loss) {
  const InStep::Scope scope(
      in_step_ ? std::make_shared<Calling>(options_.logical_ranks,
                                           [this, next = std::size_t{0}](const torch::Tensor&) mutable {
                                             if (next < gathered_.size()) return gathered_[next++];
                                             throw BadConfig("a copy of the model has other SyncBatchNorms",
                                                             "it gathers more often than the model did",
                                                             "make the same model in every model()");
                                           })
               : nullptr);
  seed_leaf(options_.seed, global_step_, leaf.leaf, options_.device);
  Leaf again = leaf_at(leaf.leaf);
  rehearsal_->leaf(leaf.batch, again, loss);
}

/// What a leaf sees while it is not its turn.
struct StepEngine::Turn {
  Leaf at;
  torch::Tensor loss;
  torch::Tensor generator;
  torch::Tensor buffers;
  std::vector<torch::Tensor> gradients;
};

/// All leaves of this trainer, which wait for each other and for those of other trainers.
void StepEngine::compute_together() {
  std::vector<Turn> turns;
  for (const LeafBatch& leaf : waiting_)
    turns.push_back({leaf_at(leaf.leaf), {}, {}, committed_.clone(), {}});
  const auto relay = std::make_shared<LeafRelay>(
      turns.size(), LeafRelay::Calls{.enter =
                                         [&](std::size_t i) {
                                           if (turns[i].generator.defined())
                                             set_default_generator_state(turns[i].generator);
                                           loss_state_.restore(turns[i].buffers);
                                           reducer_.put_aside(&turns[i].gradients);
                                         },
                                     .leave =
                                         [&](std::size_t i) {
                                           turns[i].generator = default_generator_state();
                                           loss_state_.save(turns[i].buffers);
                                         },
                                     .exchange = [this](const auto& rows) { return exchange(rows); }});
  relay->run([&](std::size_t i) {
    const LeafBatch& leaf = waiting_[i];
    const InStep::Scope scope(
        in_step_of(leaf.leaf, [relay, i](const torch::Tensor& mine) { return relay->gather(i, mine); }));
    forward_backward(leaf, turns[i].at, [&](const torch::Tensor& loss) { turns[i].loss = loss.detach(); });
    if (leaf.leaf == 0) loss_state_.save(next_);
  });
  reducer_.put_aside(nullptr);
  loss_state_.restore(committed_);
  for (Turn& turn : turns) {
    results_.add(turn.loss, turn.at);
    reducer_.take_leaf(turn.gradients);
  }
  if (rehearses(waiting_.front().leaf)) rehearse_leaf(waiting_.front(), turns.front().loss.item<double>());
  waiting_.clear();
}

/// What is gathered for a leaf, by `gather`. That of the forward of a leaf that is rehearsed is kept.
std::shared_ptr<InStep> StepEngine::in_step_of(int leaf,
                                               std::function<torch::Tensor(const torch::Tensor&)> gather) {
  const bool keeps = rehearses(leaf);
  return std::make_shared<Calling>(options_.logical_ranks,
                                   [this, keeps, gather = std::move(gather)](const torch::Tensor& mine) {
                                     torch::Tensor all = gather(mine);
                                     if (keeps)
                                       gathered_.push_back(all);  // the backward's, too, behind the forward's
                                     return all;
                                   });
}

/// What the leaves of every trainer say, in leaf order.
torch::Tensor StepEngine::exchange(const std::vector<torch::Tensor>& rows) {
  group_->throw_if_aborted();
  const torch::Tensor mine = torch::stack(rows);
  if (group_->size() == 1) return mine;
  const auto row = static_cast<std::size_t>(mine.size(1));
  std::vector<std::size_t> counts;
  for (const auto& leaves : group_->facts().leaves)
    counts.push_back(row * static_cast<std::size_t>(leaves.size()));
  torch::Tensor all = torch::empty({options_.logical_ranks, mine.size(1)}, torch::kDouble);
  told_(true);
  group_
      ->all_gather(std::span<const double>(mine.data_ptr<double>(), static_cast<std::size_t>(mine.numel())),
                   std::span<double>(all.data_ptr<double>(), static_cast<std::size_t>(all.numel())),
                   std::move(counts))
      ->wait();
  told_(false);
  return all;
}

std::vector<Figure> StepEngine::evaluate(int piece, int epoch, const data::Batch& batch) {
  seed_evaluation(options_.seed, epoch, piece, options_.device);
  const auto of_epoch = static_cast<std::uint64_t>(epoch);
  Leaf at({0, epoch, piece}, leaf_seed(options_.seed, RandomPurpose::kEvaluationLeaf, of_epoch, piece));
  const LossCheck::Before before = loss_check_.before(batch, false);
  // What a loss that is the evaluation, too, changes: a count, a stream that it draws from.
  torch::Tensor committed = loss_state_.memory();
  loss_state_.save(committed);
  if (is_in_pieces()) pieces_->begin_piece();
  model_->evaluate(batch, at);
  if (is_in_pieces()) pieces_->end_piece();
  end_forked_child();
  loss_state_.restore(committed);
  loss_check_.check(before, batch);
  return at.read_figures();
}

void StepEngine::begin_evaluation(std::int64_t pieces) {
  if (is_in_pieces()) pieces_->begin_evaluation(pieces);
}

void StepEngine::end_evaluation() {
  if (is_in_pieces()) pieces_->end_evaluation();
}

/// It would write into the memory of its parent's group.
void StepEngine::end_forked_child() const {
  if (!fork_guard_.is_in_child()) return;
  log(LogLevel::kError, std::string("a process that the job forked came back from ") + part() +
                            ", and ends: let it end " + "in its own code, with _exit()");
  ::_exit(1);
}

void StepEngine::finish_step() {
  TROUPE_ASSERT(phase_ == Phase::kLeaves && next_leaf_ == group_->leaves().end,
                "every leaf of the rank has run");
  guarded([&] {
    share_loss_state();
    if (is_in_pieces()) return pieces_->finish();
    reducer_.finish();
  });
  phase_ = Phase::kReduced;
}

/// What leaf 0's loss left goes to every rank behind the last bucket. Its host is rank 0: intervals lie in
/// rank order.
void StepEngine::share_loss_state() {
  if (next_.numel() == 0 || group_->size() == 1) return;
  if (!is_in_pieces()) return reducer_.broadcast(next_);
  pieces_->broadcast(next_);
}

/// Gradients are sums of weight x gradient over L: makes them means by weight.
void StepEngine::divide_by(double total_weight) {
  const torch::NoGradGuard no_grad;
  const double factor = options_.logical_ranks / total_weight;
  for (const NamedTensor& parameter : model_->parameters()) {
    if (parameter.tensor.grad().defined()) parameter.tensor.grad().mul_(factor);
  }
}

void StepEngine::observe(const StepValues& evaluated) {
  observe_plateaus(*model_, evaluated);
  if (rehearsal_) observe_plateaus(rehearsal_->model(), evaluated);
}

StepValues StepEngine::apply(bool ends_epoch, double total_weight) {
  TROUPE_ASSERT(phase_ == Phase::kReduced, "apply follows a step that was reduced");
  phase_ = Phase::kIdle;
  if (is_in_pieces())
    return apply_pieces({static_cast<std::int64_t>(global_step_), epoch_, ends_epoch}, total_weight);
  if (total_weight > 0) divide_by(total_weight);
  const ApplyInfo info{static_cast<std::int64_t>(global_step_), epoch_, ends_epoch};
  if (rehearsal_) rehearsal_->take_gradients(*model_);
  loss_state_.restore(next_);  // before the job's apply, which may go on to change it
  seed_apply(options_.seed, global_step_, options_.device);
  StepValues values = apply_sharded(info);
  end_forked_child();
  if (!rehearsal_) return values;
  if (group_->leaves().begin != 0) rehearsal_->take_loss_state(next_);
  seed_apply(options_.seed, global_step_, options_.device);
  using Optimizer = torch::optim::Optimizer;
  rehearsal_->apply(
      info,
      [this](Optimizer& one, TrainingModel& copy) {
        if (shards_) return shards_->step_copy(one, copy);
        one.step();
      },
      [this](Optimizer& one, TrainingModel& copy) {
        if (shards_) shards_->gather_copy(one, copy);
      });
  if (shards_) shards_->shed(rehearsal_->model());
  rehearsal_->compare(state_);
  rehearsal_.reset();
  return values;
}

StepValues StepEngine::skip(bool ends_epoch) {
  TROUPE_ASSERT(phase_ == Phase::kReduced, "a step is left out once it was reduced");
  phase_ = Phase::kIdle;
  rehearsal_.reset();
  StepValues values;
  step_schedules(*model_, ends_epoch, values);
  if (shards_) shards_->shed();
  if (is_in_pieces()) pieces_->drop_gradients();
  return values;
}

StepValues StepEngine::apply_pieces(const ApplyInfo& info, double total_weight) {
  const ParameterShards::Applying applying(*pieces_);
  if (total_weight > 0) divide_by(total_weight);
  loss_state_.restore(next_);
  seed_apply(options_.seed, global_step_, options_.device);
  StepValues values = apply_step(
      *model_, info, [](torch::optim::Optimizer& one) { one.step(); }, pieces_->gradients_of_all());
  end_forked_child();
  return values;
}

StepValues StepEngine::apply_sharded(const ApplyInfo& info) {
  if (!shards_) return apply_step(*model_, info);
  StepValues values = apply_step(
      *model_, info, [this](torch::optim::Optimizer& one) { shards_->step(one); },
      GradientsOfAll{.complete = [this](torch::optim::Optimizer& one) { shards_->gather(one); }});
  shards_->shed();
  return values;
}

void StepEngine::install(std::span<const StatePart> parts, const PartBytes& bytes_of) {
  if (pieces_) return pieces_->install(parts, bytes_of);
  state_.install(parts, nullptr, bytes_of).value();
}

void StepEngine::gather_state(int root) {
  if (shards_) shards_->gather_state(root);
}

/// u8 a parameter: it has a gradient | those gradients, as they lie | what leaf 0's loss left
std::vector<std::byte> StepEngine::record() const {
  TROUPE_ASSERT(phase_ == Phase::kReduced, "a record is of a step that was reduced");
  std::vector<std::byte> bytes;
  const auto append = [&](const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  };
  std::size_t size = parameters_.size() + next_.nbytes();
  for (const torch::Tensor& parameter : parameters_)
    size += parameter.grad().defined() ? parameter.grad().nbytes() : 0;
  bytes.reserve(size);
  for (const torch::Tensor& parameter : parameters_) bytes.push_back(std::byte{parameter.grad().defined()});
  for (const torch::Tensor& parameter : parameters_) {
    if (!parameter.grad().defined()) continue;
    const torch::Tensor host = parameter.grad().cpu();  // in its own layout
    append(host.data_ptr(), host.nbytes());
  }
  const torch::Tensor buffers = next_.cpu();
  append(buffers.data_ptr(), buffers.nbytes());
  return bytes;
}

void StepEngine::take(std::uint64_t global_step, int epoch, std::span<const std::byte> record) {
  abandon_step();
  const auto next = [&](std::size_t size) {
    if (record.size() < size)
      throw_error({ErrorCode::kCorrupt, "a step's record does not fit the job", "it is too short", ""});
    const auto bytes = record.first(size);
    record = record.subspan(size);
    return bytes;
  };
  const auto has_gradient = next(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& parameter = parameters_[i];
    parameter.mutable_grad() = torch::Tensor();
    if (has_gradient[i] == std::byte{0}) continue;
    torch::Tensor gradient = gradient_like(parameter);
    const auto bytes = next(gradient.nbytes());
    if (!bytes.empty()) copy_bytes(gradient, bytes);
    parameter.mutable_grad() = std::move(gradient);
  }
  const auto buffers = next(next_.nbytes());
  if (!buffers.empty()) copy_bytes(next_, buffers);
  if (!record.empty())
    throw_error({ErrorCode::kCorrupt, "a step's record does not fit the job", "it is too long", ""});
  global_step_ = global_step;
  epoch_ = epoch;
  phase_ = Phase::kReduced;
}

void StepEngine::abandon_step() {
  if (phase_ == Phase::kLeaves) loss_state_.restore(committed_);
  if (phase_ != Phase::kIdle) reducer_.abandon();
  if (phase_ != Phase::kIdle && is_in_pieces()) pieces_->abandon();
  phase_ = Phase::kIdle;
  rehearsal_.reset();
  waiting_.clear();
}

}  // namespace troupe::train
