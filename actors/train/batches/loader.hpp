/// The loader actor: reads a dataset and constructs batches in the memory of the trainers that ask for them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/data/batch_builder.hpp"
#include "actors/train/messages.hpp"
#include "actors/train/settings.hpp"
#include "runtime/client/session.hpp"
#include "runtime/core/condition.hpp"
#include "runtime/core/fork_guard.hpp"
#include "runtime/core/thread.hpp"

namespace troupe::train {

class TrainDriver;

/// One batch that a trainer wants, and where: a slot of its own region, which only it hands out. A trainer
/// that dies takes its region's name with it; the memory itself lives until its last mapping goes, so a late
/// write hurts nobody.
struct BatchAsk {
  data::Split split = data::Split::kTrain;
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;  ///< within the epoch; in an evaluation: the piece
  std::uint32_t leaf = 0;
  std::int64_t samples = 0;  ///< of the split, as the job knows it
  std::int64_t begin = 0;    ///< in an evaluation: the piece's samples
  std::int64_t end = 0;
  ActorAddress trainer;
  std::string region;
  std::uint64_t region_bytes = 0;
  std::uint64_t offset = 0;              ///< of the slot in the region
  std::uint64_t bytes = 0;               ///< of the slot
  std::vector<std::string> regions;      ///< of this trainer, as they are now: other ones are done with
  std::uint64_t attempt = 0;             ///< a number of the trainer's own
  std::vector<std::uint64_t> under_way;  ///< its attempts that have no whole answer: others are done with
};

/// The batch lies in the slot, unless this says otherwise.
struct BatchGiven {
  wire::Bytes bytes;        ///< when the trainer is on another node: the batch, or its first piece
  std::uint64_t total = 0;  ///< the batch's bytes then: Loader::rest gives what `bytes` lacks of them
  std::uint64_t needs = 0;  ///< not 0: the slot is too small, and the batch wants so many bytes
};

/// What a loader says of itself.
struct LoaderHello {
  int pid = 0;
  std::string numerics;  ///< TrainFloor::set_up_loader
};

/// Isolated: reading and gathering block. Any loader serves any slot, with the same samples.
class Loader {
 public:
  Loader(RunSettings settings, ActorHandle<TrainDriver> driver);
  ~Loader();
  /// Another run's from now on, as if it had just been constructed; but it keeps datasets that are the same
  /// (TrainFloor::same_data). Throws as the constructor; it is of no use then.
  void employ(const RunSettings& settings, ActorHandle<TrainDriver> driver);

  /// Reads a first batch to know its size: what is wrong with the data shows before anything else starts.
  DataInfo describe();
  LoaderHello hello() const;
  /// A fault on purpose: this process gets the signal.
  void raise_signal(int number);
  /// Constructs the batch. Throws what BatchBuilder throws.
  BatchGiven load(const BatchAsk& ask);
  /// The piece from `offset` on of the batch that answered `attempt`. The last one lets go of the batch.
  /// Throws Unavailable where the trainer's later asks said that it wants it no more.
  wire::Bytes rest(ActorId trainer, std::uint64_t attempt, std::uint64_t offset);
  /// Starts to tell the driver every second that it lives, and how far it has come.
  void start_heartbeat();

 private:
  void make_datasets();
  void learn_sizes();
  void end_heartbeat();
  struct alignas(data::kBatchAlignment) Line {
    std::array<std::byte, data::kBatchAlignment> bytes;
  };
  /// What a trainer has here.
  struct Client {
    std::map<std::string, SharedMemory> regions;
    std::map<std::uint64_t, std::vector<Line>> rests;  ///< by attempt: it does not have all of these yet
  };
  Client& client(const BatchAsk& ask);
  BatchGiven send(Client& client, const BatchAsk& ask, data::BatchBuilder& batch, const data::BatchKey& key);
  std::span<std::byte> slot(Client& client, const BatchAsk& ask);
  const data::Dataset& dataset(data::Split split) const;
  std::vector<std::int64_t> indices_of(const BatchAsk& ask);
  data::SampleHooks hooks();
  class Computing;
  void computes(const std::string& what);
  void check_forks() const;

  ForkGuard fork_guard_;
  SharedMemory child_came_back_;  ///< one byte, which a forked child shares
  RunSettings settings_;
  ActorHandle<TrainDriver> driver_;
  std::string numerics_;
  std::shared_ptr<data::Dataset> train_;
  std::shared_ptr<data::Dataset> test_;
  std::shared_ptr<data::Dataset> validation_;  ///< null: the job has none
  DataInfo info_;
  std::unique_ptr<data::LeafSampler> sampler_;
  std::map<ActorId, Client> clients_;

  /// The actor's thread may be in the user's get() for long: this one beats.
  Thread heartbeat_;
  std::mutex mutex_;
  Condition ends_;
  bool ending_ = false;  ///< guarded by mutex_, as is:
  Progress progress_;
};

}  // namespace troupe::train
