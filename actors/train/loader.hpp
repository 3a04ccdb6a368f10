/// The loader actor: reads a dataset and constructs batches in the memory of the trainers that ask for them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "actors/data/batch_layout.hpp"
#include "actors/train/settings.hpp"
#include "runtime/client/session.hpp"

namespace troupe::train {

class TrainDriver;

/// One batch that a trainer wants, and where: a slot of its own region, which only it hands out. A trainer
/// that dies takes its region's name with it; the memory itself lives until its last mapping goes, so a late
/// write hurts nobody.
struct BatchAsk {
  data::Split split = data::Split::kTrain;
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;  ///< within the epoch
  std::uint32_t leaf = 0;
  std::int64_t begin = 0;  ///< with kTest: samples [begin, end)
  std::int64_t end = 0;
  ActorAddress trainer;
  std::string region;
  std::uint64_t region_bytes = 0;
  std::uint64_t offset = 0;  ///< of the slot in the region
  std::uint64_t bytes = 0;   ///< of the slot
};

struct BatchGiven {
  wire::Bytes bytes;  ///< the batch itself, when the trainer is on another node; else it lies in the slot
};

/// Isolated: reading and gathering block. Any loader serves any slot, with the same samples.
class Loader {
 public:
  Loader(RunSettings settings, ActorHandle<TrainDriver> driver);

  DataInfo describe() const { return info_; }
  int pid() const;
  /// Constructs the batch. Throws what the dataset throws, and Error (kLimit) for a slot that is too small.
  BatchGiven load(const BatchAsk& ask);
  /// Starts to tell the driver every second that it lives.
  void start_heartbeat();

 private:
  std::span<std::byte> slot(const BatchAsk& ask);
  const data::Dataset& dataset(data::Split split);

  RunSettings settings_;
  ActorHandle<TrainDriver> driver_;
  std::shared_ptr<data::Dataset> train_;
  std::shared_ptr<data::Dataset> test_;
  DataInfo info_;
  std::unique_ptr<data::LeafSampler> sampler_;
  std::map<std::string, SharedMemory> regions_;
};

}  // namespace troupe::train
