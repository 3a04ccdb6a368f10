#include "actors/train/engine/step_engine.hpp"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

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

torch::Tensor memory_for(const BufferPack& pack, torch::Device device) {
  return torch::empty({static_cast<std::int64_t>(pack.size_bytes())},
                      torch::TensorOptions(torch::kUInt8).device(device));
}

}  // namespace

StepEngine::StepEngine(std::unique_ptr<TrainingModel> model, EngineOptions options)
    : model_(std::move(model)),
      options_(options),
      state_(*model_),
      buffers_(model_->buffers(), options.device),
      reducer_(model_->parameters(), options.logical_ranks, reducer_options(options)),
      results_(options.device),
      committed_buffers_(memory_for(buffers_, options.device)),
      next_buffers_(memory_for(buffers_, options.device)) {
  for (const NamedTensor& parameter : model_->parameters()) parameters_.push_back(parameter.tensor);
}

StepEngine::~StepEngine() = default;

void StepEngine::attach(std::shared_ptr<collectives::ProcessGroup> group,
                        std::shared_ptr<collectives::ProcessGroup> gradients) {
  abandon_step();
  reducer_.attach(group, std::move(gradients));
  group_ = std::move(group);
}

void StepEngine::detach() {
  abandon_step();
  reducer_.detach();
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
  rehearsal_.emplace(std::move(fresh), state_);
}

void StepEngine::begin_step(std::uint64_t global_step, int epoch) {
  TROUPE_ASSERT(group_, "a step needs a group: attach first");
  if (phase_ != Phase::kIdle) abandon_step();
  global_step_ = global_step;
  epoch_ = epoch;
  next_leaf_ = group_->leaves().begin;
  buffers_.save(committed_buffers_);
  results_.begin();
  guarded([&] { reducer_.begin_step(); });
  phase_ = Phase::kLeaves;
}

void StepEngine::run_leaf(const LeafBatch& leaf) {
  TROUPE_ASSERT(phase_ == Phase::kLeaves && leaf.leaf == next_leaf_,
                "leaves run in the order of the interval");
  ++next_leaf_;
  guarded([&] { compute_leaf(leaf); });
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

void StepEngine::compute_leaf(const LeafBatch& leaf) {
  seed_leaf(options_.seed, global_step_, leaf.leaf, options_.device);
  reducer_.begin_leaf();
  const std::uint64_t stream = leaf_seed(options_.seed, RandomPurpose::kLeaf, global_step_, leaf.leaf);
  const Leaf::Place place{static_cast<std::int64_t>(global_step_), epoch_, leaf.leaf};
  Leaf at(place, stream);
  const std::uint64_t before = changes_of_parameters();
  const torch::Tensor loss = model_->loss(leaf.batch, at);
  end_forked_child("loss()");
  if (!loss.defined()) throw BadConfig("loss() returned no tensor", "it is undefined", "return the loss");
  if (loss.numel() != 1) {
    throw BadConfig("the loss is not a scalar", "the trainer runs backward from it",
                    "return its mean or sum");
  }
  if (at.weight() && !(std::isfinite(*at.weight()) && *at.weight() >= 0)) {
    throw BadConfig("a leaf's weight is " + std::to_string(*at.weight()), "it is a share of the step's mean",
                    "give a finite number that is not negative");
  }
  const bool rehearsed = rehearsal_ && leaf.leaf == group_->leaves().begin;
  const double value = rehearsed ? loss.item<double>() : 0;
  results_.add(loss, at);
  reducer_.begin_backward();
  try {
    (at.weight() ? loss * *at.weight() : loss).backward();
  } catch (...) {
    reducer_.rethrow_failure();
    throw;
  }
  check_parameters_unchanged(before, "loss()");
  if (leaf.leaf == 0) buffers_.save(next_buffers_);
  buffers_.restore(committed_buffers_);
  reducer_.end_leaf();
  if (!rehearsed) return;
  seed_leaf(options_.seed, global_step_, leaf.leaf, options_.device);
  Leaf again(place, stream);
  rehearsal_->leaf(leaf.batch, again, value);
}

/// How often parameters were changed in place: the sum of their version counters.
std::uint64_t StepEngine::changes_of_parameters() const {
  std::uint64_t changes = 0;
  for (const torch::Tensor& parameter : parameters_) changes += parameter._version();
  return changes;
}

void StepEngine::check_parameters_unchanged(std::uint64_t before, const char* where) const {
  if (changes_of_parameters() == before) return;
  throw BadConfig(std::string("the job's ") + where + " changes parameters of the net",
                  "each trainer would go on with other ones, as it computes other samples",
                  "change them in apply(), which every trainer does alike");
}

std::vector<Figure> StepEngine::evaluate(int piece, int epoch, const data::Batch& batch) {
  seed_evaluation(options_.seed, epoch, piece, options_.device);
  const auto of_epoch = static_cast<std::uint64_t>(epoch);
  Leaf at({0, epoch, piece}, leaf_seed(options_.seed, RandomPurpose::kEvaluationLeaf, of_epoch, piece));
  const std::uint64_t before = changes_of_parameters();
  model_->evaluate(batch, at);
  end_forked_child("evaluate()");
  check_parameters_unchanged(before, "evaluate()");
  return at.read_figures();
}

/// It would write into the memory of its parent's group.
void StepEngine::end_forked_child(const char* of) const {
  if (!fork_guard_.is_in_child()) return;
  log(LogLevel::kError, std::string("a process that the job's ") + of +
                            " forked came back from it, and ends: let it end " +
                            "in its own code, with _exit()");
  ::_exit(1);
}

void StepEngine::finish_step() {
  TROUPE_ASSERT(phase_ == Phase::kLeaves && next_leaf_ == group_->leaves().end,
                "every leaf of the rank has run");
  guarded([&] {
    share_buffers();
    reducer_.finish();
  });
  phase_ = Phase::kReduced;
}

/// Leaf 0's buffers go to every rank behind the last bucket. Its host is rank 0: intervals lie in rank order.
void StepEngine::share_buffers() {
  if (next_buffers_.numel() == 0 || group_->size() == 1) return;
  reducer_.broadcast(next_buffers_);
}

/// Gradients are sums of weight x gradient over L: makes them means by weight.
void StepEngine::divide_by(double total_weight) {
  const torch::NoGradGuard no_grad;
  const double factor = options_.logical_ranks / total_weight;
  for (const NamedTensor& parameter : model_->parameters()) {
    if (parameter.tensor.grad().defined()) parameter.tensor.grad().mul_(factor);
  }
}

StepValues StepEngine::apply(bool ends_epoch, double total_weight) {
  TROUPE_ASSERT(phase_ == Phase::kReduced, "apply follows a step that was reduced");
  phase_ = Phase::kIdle;
  if (total_weight > 0) divide_by(total_weight);
  const ApplyInfo info{static_cast<std::int64_t>(global_step_), epoch_, ends_epoch};
  if (rehearsal_) rehearsal_->take_gradients(*model_);
  seed_apply(options_.seed, global_step_, options_.device);
  StepValues values = apply_step(*model_, info);
  end_forked_child("apply()");
  buffers_.restore(next_buffers_);
  if (!rehearsal_) return values;
  seed_apply(options_.seed, global_step_, options_.device);
  rehearsal_->apply(info);
  if (group_->leaves().begin != 0) rehearsal_->take_buffers(*model_);  // the step's are leaf 0's
  rehearsal_->compare(state_);
  rehearsal_.reset();
  return values;
}

/// u8 a parameter: it has a gradient | those gradients, as they lie | leaf 0's buffers
std::vector<std::byte> StepEngine::record() const {
  TROUPE_ASSERT(phase_ == Phase::kReduced, "a record is of a step that was reduced");
  std::vector<std::byte> bytes;
  const auto append = [&](const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  };
  std::size_t size = parameters_.size() + next_buffers_.nbytes();
  for (const torch::Tensor& parameter : parameters_)
    size += parameter.grad().defined() ? parameter.grad().nbytes() : 0;
  bytes.reserve(size);
  for (const torch::Tensor& parameter : parameters_) bytes.push_back(std::byte{parameter.grad().defined()});
  for (const torch::Tensor& parameter : parameters_) {
    if (!parameter.grad().defined()) continue;
    const torch::Tensor host = parameter.grad().cpu();  // in its own layout
    append(host.data_ptr(), host.nbytes());
  }
  const torch::Tensor buffers = next_buffers_.cpu();
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
  const auto buffers = next(next_buffers_.nbytes());
  if (!buffers.empty()) copy_bytes(next_buffers_, buffers);
  if (!record.empty())
    throw_error({ErrorCode::kCorrupt, "a step's record does not fit the job", "it is too long", ""});
  global_step_ = global_step;
  epoch_ = epoch;
  phase_ = Phase::kReduced;
}

void StepEngine::abandon_step() {
  if (phase_ == Phase::kLeaves) buffers_.restore(committed_buffers_);
  if (phase_ != Phase::kIdle) reducer_.abandon();
  phase_ = Phase::kIdle;
  rehearsal_.reset();
}

}  // namespace troupe::train
