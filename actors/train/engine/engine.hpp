/// LibTorch's part of a trainer, as the rest of it sees it: a TrainState, and the steps that change it.
/// TorchEngine is it in production; a simulation has its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/data/batch_layout.hpp"
#include "actors/train/engine/state_parts.hpp"
#include "actors/train/engine/state_walk.hpp"
#include "actors/train/job/figures.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

/// What a leaf came to.
struct LeafResult {
  double loss = 0;
  std::optional<double> weight;  ///< as the job gave it
  std::vector<Figure> figures;
};

/// A part of a state, or those of its elements that a trainer keeps.
struct HeldPart {
  StatePart part;  ///< shape of the whole, bytes of the elements from `begin` on, in the order of memory
  std::int64_t begin = 0;
  std::vector<std::int64_t> strides{};  ///< of that order; empty: row-major
  bool is_weight = false;               ///< a parameter or a buffer
  bool is_shared = false;               ///< every trainer has it, whole
  std::shared_ptr<const void> owner{};  ///< keeps alive what `part` points into
};

/// Where a copy of a state is in the memory of a process, run behind run.
struct StateMemory {
  struct Run {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  std::int32_t pid = 0;
  std::vector<Run> runs;
};

/// A state as a safetensors file, as it was when the copy was made.
class StateCopy {
 public:
  /// `parts`: of the state, as TrainEngine::state() has them; their sizes are kept.
  explicit StateCopy(std::vector<StatePart> parts = {}) : parts_(std::move(parts)) {
    for (StatePart& part : parts_) part.bytes = {static_cast<const std::byte*>(nullptr), part.bytes.size()};
  }
  virtual ~StateCopy() = default;
  /// In the state's order, without bytes; the file's is lay_out_safetensors' of them.
  const std::vector<StatePart>& parts() const { return parts_; }
  virtual std::uint64_t size() const = 0;
  /// For the process `reader` of this host, as long as this lives; none: it is read here alone. Not in the
  /// thread that computes.
  virtual std::optional<StateMemory> memory(std::int32_t /*reader*/) { return std::nullopt; }
  /// REQUIRES: offset + into.size() <= size(). Not in the thread that computes.
  virtual void read(std::uint64_t offset, std::span<std::byte> into) = 0;

 private:
  std::vector<StatePart> parts_;
};

/// A state that several trainers have in shards. Not thread-safe; until the next step.
struct ShardedState {
  std::vector<StatePart> parts;  ///< of all of it, in its order, without bytes
  /// By rank: what it gives of them, in that order, without bytes. What all have, the first gives.
  std::vector<std::vector<HeldPart>> held;
  std::size_t rank = 0;  ///< this trainer's
  const std::vector<HeldPart>& mine() const { return held[rank]; }
  /// Copies what this trainer gives, as a file of elements_of(). Throws where it cannot.
  std::function<std::unique_ptr<StateCopy>()> copy_mine;
};

/// Not thread-safe: the thread that computes drives it. What the job's code throws leaves as it is.
class TrainEngine {
 public:
  virtual ~TrainEngine() = default;
  /// First in the thread that computes.
  virtual void enter_thread() = 0;
  /// Fingerprint of how this process computes (numerics.hpp).
  virtual std::string numerics() const = 0;

  // The TrainState; not during a step.

  /// A look without a copy: valid until the next step.
  struct State {
    std::vector<StatePart> parts;
    std::shared_ptr<const void> owner;  ///< keeps alive what `parts` points into
  };
  virtual State state() = 0;
  /// hash_piece() of it, for less than a copy of it all.
  virtual PieceHashes prove(int piece) { return hash_piece(state().parts, piece); }
  /// Takes less time than a step, however large the state is.
  virtual std::unique_ptr<StateCopy> copy_state() = 0;
  /// The same of parameters, buffers and averages of parameters (job/ema.hpp) alone.
  virtual std::unique_ptr<StateCopy> copy_weights() { return copy_state(); }
  /// How many of the parts are parameters and buffers: they come first.
  virtual std::size_t weight_parts() = 0;
  /// Replaces all of it, or throws and changes nothing. With `bytes_of` parts have no bytes of their own, and
  /// what it throws may leave a state that is neither: another one has to be installed.
  virtual void install(std::span<const StatePart> parts, const PartBytes& bytes_of) = 0;
  void install(std::span<const StatePart> parts) { install(parts, {}); }
  /// The same, but with the optimizer options and schedules that the job's struct sets.
  virtual void install_with_own_options(std::vector<StatePart> parts) = 0;
  /// As the seed makes it.
  virtual void install_initial() = 0;

  /// How long the whole run is, in steps: once, before any state or step. Throws what the job's schedules do.
  virtual void know_run(std::int64_t /*steps*/, std::int64_t /*steps_per_epoch*/) {}

  // With a sharded optimizer (optimizer_shards.hpp) this engine holds a part of what it keeps once a step was
  // applied: state() has that alone.

  /// Gets the rest from the others, on rank `root` or, with -1, on all, until the next step begins.
  /// Collective; without shards it does nothing.
  virtual void gather_state(int /*root*/) {}

  // With sharded parameters (parameter_shards.hpp) it holds a part of the state from the first step that it
  // begins with others, or the state that it installs with them: state() throws Unavailable then.

  virtual bool holds_whole_state() const { return true; }
  /// A walk over the whole state, on rank `root` or, with -1, on all. Collective.
  virtual std::unique_ptr<StateWalk> walk(int root) {
    gather_state(root);
    State whole = state();
    return std::make_unique<WholeWalk>(std::move(whole.parts), std::move(whole.owner));
  }
  /// Where the state is, if this trainer has pieces of it. Collective then.
  virtual std::optional<ShardedState> shards() { return std::nullopt; }
  /// What this trainer has of the state; with that of all others it is whole. Not collective.
  virtual std::vector<HeldPart> held() {
    State all = state();
    std::vector<HeldPart> parts;
    for (StatePart& part : all.parts) {
      const bool is_weight = parts.size() < weight_parts();
      parts.push_back({std::move(part), 0, {}, is_weight, is_weight, all.owner});
    }
    return parts;
  }
  /// What all trainers have, to be compared, where the state is sharded.
  virtual State common() {
    State whole = state();
    whole.parts.erase(whole.parts.begin() + static_cast<std::ptrdiff_t>(weight_parts()), whole.parts.end());
    return whole;
  }

  /// Memory for copies to and from the device, until what it returns goes (pinned_memory.hpp). Any thread.
  virtual std::shared_ptr<const void> pin(std::span<std::byte> /*memory*/) { return nullptr; }

  // Steps (step_engine.hpp).

  /// Told when a step begins to wait for other ranks (true) and goes on (false): by the thread that computes,
  /// or one that it waits for.
  virtual void on_exchange(std::function<void(bool)> /*told*/) {}

  /// Bytes of the group's memory that its reductions take, where `leaves` are those of the ranks. Without
  /// `gradients` another group reduces these.
  virtual std::size_t group_bytes(const std::vector<collectives::LeafInterval>& leaves,
                                  bool gradients) const = 0;
  /// `gradients`: the group that reduces them; null: `group` does (reducer.hpp).
  virtual void attach(std::shared_ptr<collectives::ProcessGroup> group,
                      std::shared_ptr<collectives::ProcessGroup> gradients) = 0;
  virtual void detach() = 0;
  /// A fresh copy of the model computes the next step, too.
  virtual void rehearse() = 0;
  virtual void begin_step(std::int64_t step, int epoch) = 0;
  /// Returns when the leaf is under way; on the CPU it is done then. Leaves that wait for each other run with
  /// the last of them, on copies of their batches.
  virtual void run_leaf(int leaf, const data::BatchView& batch) = 0;
  /// How many of the step's leaves, from the first, need their batches' memory no more. Does not wait.
  virtual std::size_t batches_done() = 0;
  /// What the leaves came to, in their order. Waits until their forwards are done, on a GPU for the one host
  /// wait of a step: then all batches are done, too.
  virtual std::vector<LeafResult> results() = 0;
  /// Reduces.
  virtual void finish_step() = 0;
  virtual void abandon_step() = 0;
  /// What the state before the step that is applied next was evaluated to: schedules may look at it.
  virtual void observe(const StepValues& /*evaluated*/) {}
  virtual StepValues apply(bool ends_epoch, double total_weight) = 0;
  /// In its place: the step leaves the state as it was, but for schedules.
  virtual StepValues skip(bool ends_epoch) = 0;
  /// What apply() takes beside the TrainState: of a step that was reduced, before its apply.
  virtual std::vector<std::byte> step_record() = 0;
  /// As if that step had been reduced here: apply() follows. No group is needed. Throws Corrupt for what is
  /// no record of this job.
  virtual void take_record(std::int64_t step, int epoch, std::span<const std::byte> record) = 0;
  /// The part of the job's code that was called last (TrainingModel::part); empty: not known.
  virtual std::string part() const { return {}; }
  /// evaluate() follows for so many pieces, then end_evaluation(). With sharded parameters collective.
  virtual void begin_evaluation(std::int64_t /*pieces*/) {}
  /// What a piece of the test set counts to.
  virtual std::vector<Figure> evaluate(std::int64_t piece, int epoch, const data::BatchView& batch) = 0;
  /// The pieces of an epoch are evaluated: what they took of memory, steps may not need.
  virtual void end_evaluation() {}
};

}  // namespace troupe::train
