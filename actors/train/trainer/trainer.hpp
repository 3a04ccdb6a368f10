/// The trainer actor: one process that computes the leaves it is dealt. Its rules are TrainerMachine's; this
/// is the thread that carries them out with the engine, the process group and the batch feed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/train/messages.hpp"
#include "actors/train/settings.hpp"
#include "actors/train/trainer/held_state.hpp"
#include "actors/train/trainer/kept_copy.hpp"
#include "actors/train/trainer/shard_copies.hpp"
#include "actors/train/trainer/state_stream.hpp"
#include "actors/train/trainer/trainer_hello.hpp"
#include "actors/train/trainer/weight_copies.hpp"
#include "runtime/client/session.hpp"

namespace troupe::train {

class TrainDriver;

/// Isolated. Orders are taken in the actor's thread while another one computes, so an order never waits for a
/// step.
class Trainer {
 public:
  Trainer(RunSettings settings, ActorHandle<TrainDriver> driver);
  ~Trainer();
  /// Another run's from now on, as if it had just been constructed. Throws as the constructor; it is of no
  /// use then.
  void employ(const RunSettings& settings, ActorHandle<TrainDriver> driver);

  TrainerHello hello();
  /// The data, before the first order. Starts the work.
  void prepare(const DataInfo& info);
  void order(const TrainerOrder& order);
  /// A piece of what this trainer shares since its ShareState of generation `in`. Throws Unavailable if it
  /// does not any more.
  SharedPiece shared(Generation in, std::uint64_t offset);
  /// A piece of the state that this trainer held when it was first asked, from `offset`; nothing behind its
  /// end. Throws Unavailable when it holds none, or may be changing it. Whoever asks looks at which state it
  /// is.
  HeldPiece final_state(HeldWish wish, std::uint64_t offset);
  /// Keeps a copy of the state as it is, until the next keep() or until nobody wants it for a while
  /// (KeptCopy::beat), for trainers of other jobs. Throws as final_state.
  KeptState keep();
  /// A piece of that. Throws Unavailable if it keeps another one by now, or none.
  SharedPiece kept(std::uint64_t number, std::uint64_t offset) { return kept_.read(number, offset); }
  /// A copy of the weights as they are after some step, which the others need not have applied yet: taken
  /// between two steps, for whoever reads it, until drop_copy().
  Future<KeptState> copy_weights() { return copies_.ask(); }
  /// A piece of that. Throws Unavailable if it is not kept any more.
  SharedPiece copied_weights(std::uint64_t number, std::uint64_t offset) {
    return copies_.read(number, offset);
  }
  void drop_copy(std::uint64_t number) { copies_.drop(number); }
  /// Bytes of the copy of its shards that it keeps for a checkpoint: see KeptShards::read.
  SharedPiece shards(const ShardsOf& of, std::uint64_t offset, std::uint64_t bytes) {
    return shards_.read(of, offset, bytes);
  }
  /// Who writes that checkpoint has no more use for it.
  void drop_shards(const ShardsOf& of) { shards_.drop(of); }
  /// How the process `reader` has it. Throws Unavailable if it keeps another one by now.
  KeptPlace kept_place(std::uint64_t number, std::int32_t reader) { return kept_.place(number, reader); }
  /// Somebody has all of it.
  void kept_is_taken(std::uint64_t number) { kept_.taken(number); }
  /// A fault on purpose: this process gets the signal.
  void raise_signal(int number);

 private:
  class Work;  // everything that needs LibTorch (trainer.cpp)
  void beat();

  WeightCopies copies_;         ///< work_ makes them
  KeptShards shards_;           ///< the same
  std::unique_ptr<Work> work_;  ///< null: it could not be employed
  bool beats_ = false;
  KeptCopy kept_;
};

}  // namespace troupe::train
