/// ZeRO-2 and ZeRO-3 in a job: a trainer keeps, of every parameter, its gradient and what optimizers keep for
/// it, the pieces in the shards of its leaves (sharded_unit.hpp).
///
/// A unit is gathered when an operator first uses one of its parameters (ddp/storage_watch.hpp), in the
/// forward and again in the backward. With ZeRO-3 it is freed when another one is gathered; the root's, which
/// is what no unit has, at the leaf's end. With ZeRO-2 all are whole until the step's end. Gradients of a
/// trainer's leaves are summed by the fold schedule; when those of a unit are in for the last time, every
/// trainer gets the partial sums of its shards and adds them in tree order. So the bits are the unsharded
/// job's, as those of SGD, Adam, AdamW, RMSprop and Adagrad are, which compute element by element.
///
/// Trainers gather together, so their leaves run in rounds, the first of each, then the second. Before each
/// collective the first rank that has a leaf in the round tells which unit's it is: whoever has no leaf left
/// follows, and whoever uses another unit ends the group. With prefetch the unit that the step before
/// gathered next is on its way meanwhile; where the steps differ it is dropped.
///
/// On a GPU units are gathered and gradients reduced by the gradients' group (NCCL), on the device's default
/// stream, where there is one; else through the host's memory. The host waits once, at the end of a step or
/// an evaluation. What trainers tell each other goes over their own group.
///
/// On a trainer that is alone nothing is cut. Not thread-safe: the thread that computes drives it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/ddp/device_streams.hpp"
#include "actors/ddp/fsdp_options.hpp"
#include "actors/ddp/reduced_parameter.hpp"
#include "actors/ddp/storage_watch.hpp"
#include "actors/train/engine/engine.hpp"
#include "actors/train/engine/fold_schedule.hpp"
#include "actors/train/engine/gather_order.hpp"
#include "actors/train/engine/reducer.hpp"
#include "actors/train/engine/sharded_unit.hpp"
#include "actors/train/engine/state_walk.hpp"
#include "actors/train/engine/train_state.hpp"
#include "actors/train/job/apply.hpp"
#include "actors/train/job/model.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

class ParameterShards final : private Pieces {
 public:
  /// `where`: its device, way through the host, and streams. `told`: see TrainEngine::on_exchange. Throws
  /// BadConfig for a job that cannot be cut.
  ParameterShards(TrainingModel& model, TrainState& state, int shards, const FsdpOptions& options,
                  const ReducerOptions& where, std::function<void(bool)> told);
  ~ParameterShards();
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;

  /// Takes part in `group` from now on. What is cut has no value until a state is installed. `gradients`: of
  /// the parameters' device, as for Reducer::attach.
  void attach(std::shared_ptr<collectives::ProcessGroup> group,
              std::shared_ptr<collectives::ProcessGroup> gradients = nullptr);
  void detach();
  /// Whether this trainer is one of several.
  bool is_used() const { return group_ && group_->size() > 1; }
  bool is_cut() const { return cut_; }

  // Steps. REQUIRES: is_used().

  void begin_step();
  void begin_leaf();
  /// After its backward. Throws BadConfig for unused parameters.
  void end_leaf();
  /// When a leaf threw: throws what an operator or a hook did, before autograd wrapped it.
  void rethrow_failure();
  /// The rounds of others. REQUIRES: this rank's leaves are through.
  void other_rounds();
  /// Gives rank 0's `bytes`, which are where the parameters are, to every rank.
  void broadcast(const torch::Tensor& bytes);
  /// Waits, on the host, for the device: who returns knows that what was exchanged is good.
  void finish();
  /// Gives a step up.
  void abandon();

  /// Optimizers see what this trainer keeps while it lives. REQUIRES: a step that was reduced.
  class Applying {
   public:
    explicit Applying(ParameterShards& of) : of_(of) { of_.show_pieces(); }
    ~Applying() { of_.show_whole(); }
    Applying(const Applying&) = delete;
    Applying& operator=(const Applying&) = delete;

   private:
    ParameterShards& of_;
  };
  GradientsOfAll gradients_of_all();
  void drop_gradients();

  // Evaluations. REQUIRES: is_used().

  /// `pieces`: this rank's. Collective.
  void begin_evaluation(std::int64_t pieces);
  void begin_piece() { begin_round(); }
  void end_piece() { end_round(); }
  void end_evaluation();

  // The state; not during a step.

  /// TrainEngine::install.
  void install(std::span<const StatePart> parts, const PartBytes& bytes_of);
  /// TrainEngine::walk. Collective. REQUIRES: is_used().
  std::unique_ptr<StateWalk> walk(int root);
  /// TrainEngine::shards, where `copy` is what copies a view. Collective. REQUIRES: is_used().
  ShardedState shards(std::function<std::unique_ptr<StateCopy>(StateView)> copy);
  /// TrainEngine::held. REQUIRES: is_used().
  std::vector<HeldPart> held();
  /// What every trainer has all of: buffers, and parameters that are not trained.
  StateView common() const;
  /// Cuts what is whole. REQUIRES: is_used().
  void cut();

  /// Gathers that were under way before their unit was used, and those of them that came in vain.
  struct Prefetched {
    std::int64_t used = 0;
    std::int64_t dropped = 0;
  };
  const Prefetched& prefetched() const { return prefetched_; }

 private:
  /// For callbacks that may outlive it.
  struct Self {
    ParameterShards* shards;
  };
  class Walk;
  struct Place {
    std::size_t unit = 0;
    std::size_t member = 0;
  };
  /// An operation under way, on what the group works on.
  struct Move {
    torch::Tensor from, into;
    torch::Tensor back;  ///< where `into` goes from the host; undefined: it is there
    std::shared_ptr<collectives::Work> work;
  };
  /// A unit that comes into memory of its own.
  struct Gathering {
    std::size_t unit = 0;
    torch::Tensor memory;
    Move move;
  };
  /// The gradients of a unit's members, flat: by array of the fold schedule.
  struct Sums {
    std::vector<torch::Tensor> arrays;
    std::vector<bool> seen;  ///< by member, in this leaf
    std::size_t missing = 0;
  };

  void plan(const FsdpOptions& options);
  void watch();
  void use(const std::vector<StorageUse>& uses);
  [[noreturn]] void refuse_use(const StorageUse& use) const;
  Gathering begin_gather(std::size_t unit);
  void gather(std::size_t unit);
  void gather_ahead();
  void settle_ahead();
  void abandon_ahead();
  void gradient_ready(std::size_t index);
  void take(std::size_t index);
  void fold(std::size_t unit);
  void reduce(std::size_t unit);
  torch::Tensor summed(std::size_t unit);
  void begin_rounds(std::vector<std::int64_t> counts, GatherOrder& order);
  void begin_round();
  void end_round();
  int leader() const;
  bool is_last_round() const { return round_ + 1 == rounds_; }
  std::int64_t told(std::int64_t what);
  void announce(std::int64_t what);
  void free_units();
  void show_whole();
  void show_pieces();
  torch::Tensor gradient_of(ShardedUnit& unit);
  /// Of whole gradients, or of whole parameters.
  std::vector<torch::Tensor> norms(double norm_type, bool of_parameters = false);
  bool all(bool mine);
  void exchange(const std::shared_ptr<collectives::Work>& work);
  /// Of tensors where the parameters are.
  using Launch = std::function<std::shared_ptr<collectives::Work>(
      collectives::ProcessGroup&, const collectives::Buffer& from, const collectives::Buffer& into)>;
  void move(const torch::Tensor& from, const torch::Tensor& into, const Launch& launch);
  Move begin_move(const torch::Tensor& from, const torch::Tensor& into, const Launch& launch);
  void end_move(const Move& move);
  template <class Body>
  void on_stream_of_data(Body&& body) const;
  const std::vector<collectives::LeafInterval>& leaves() const { return group_->facts().leaves; }
  const Place* place_of(const torch::Tensor& parameter) const;
  torch::Tensor piece(const torch::Tensor& parameter, const torch::Tensor& whole) override;
  bool set(const torch::Tensor& parameter, const torch::Tensor& value) override;
  /// For a parameter that is not cut: as it is.
  torch::Tensor in_one_dimension(const Place& at, const torch::Tensor& whole) const;
  void cut_state(const torch::Tensor& parameter);
  std::vector<std::byte> fields_told() const;

  TrainingModel& model_;
  TrainState& state_;
  const int shards_;
  const bool frees_;  ///< ZeRO-3
  const bool prefetches_;
  const std::function<void(bool)> told_;
  std::vector<ReducedParameter> parameters_;
  std::vector<Place> places_;                                        ///< by parameter
  std::unordered_map<const torch::TensorImpl*, std::size_t> index_;  ///< of a parameter
  std::vector<ShardedUnit> units_;
  std::optional<std::size_t> root_;  ///< what is in no unit

  std::shared_ptr<collectives::ProcessGroup> group_;
  std::shared_ptr<collectives::ProcessGroup> data_;  ///< what tensors go by; may be group_
  const ReducerOptions where_;
  const DeviceStreams streams_;
  bool through_host_ = false;
  FoldSchedule schedule_;
  std::vector<collectives::LeafInterval> nodes_;  ///< of all ranks' partial sums, left to right
  std::vector<int> partials_;                     ///< of each rank
  bool by_ranks_ = false;  ///< the tree of ranks is the top of the leaves': one partial sum each

  bool cut_ = false;
  bool computes_ = false;             ///< a leaf, or a piece of an evaluation
  bool trains_ = false;               ///< a leaf
  bool quiet_ = false;                ///< what is done to parameters does not look at their memory
  std::vector<std::int64_t> counts_;  ///< rounds of each rank
  std::int64_t round_ = 0;
  std::int64_t rounds_ = 0;
  GatherOrder of_steps_, of_evaluations_;
  GatherOrder* order_ = &of_steps_;  ///< of what is under way
  std::optional<Gathering> ahead_;   ///< what is expected next
  std::vector<Sums> sums_;           ///< by unit
  std::exception_ptr failure_;
  Prefetched prefetched_;

  std::shared_ptr<Self> self_;
  std::optional<GradientHooks> hooks_;
};

}  // namespace troupe::train
