/// A checkpoint into the trainers' states: from its file, and from who reads it to who cannot.
#pragma once

#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/train/engine/engine.hpp"
#include "actors/train/plan.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

/// The end that reads. To each receiver go, in this order:
/// ```
/// I64 kReads, as often as a piece of the file was looked at | I64 bytes of the safetensors prefix, I64 of
/// all | the prefix | for each part, in the order in which install() asks: I64 its place, its bytes, XXH3-128
/// ```
/// so that no trainer has more of it in memory than a part.
class CheckpointSender {
 public:
  CheckpointSender(collectives::ProcessGroup& group, std::vector<int> receivers)
      : group_(group), receivers_(std::move(receivers)) {}
  bool is_on() const { return !receivers_.empty(); }
  /// What threw last was the way to a receiver.
  bool is_broken() const { return broken_; }
  void still_reads();
  void begin(const std::vector<StatePart>& parts);
  /// REQUIRES: begin().
  void send(const StatePart& part, std::span<const std::byte> bytes);

 private:
  void to_all(std::span<const std::byte> bytes);
  void to_all(std::int64_t word) { to_all(std::as_bytes(std::span(&word, 1))); }

  collectives::ProcessGroup& group_;
  const std::vector<int> receivers_;
  std::vector<std::string> places_;  ///< names
  bool broken_ = false;
};

/// Throws if the checkpoint does not load, or is not the one with that hash. `sender`: passes it on, where it
/// has receivers.
void install_checkpoint(TrainEngine& engine, checkpoint::CheckpointStore store, const std::string& path,
                        const StateHash& hash, CheckpointSender& sender);
/// The other end. Throws kCorrupt for what is not what was sent.
void receive_checkpoint(TrainEngine& engine, collectives::ProcessGroup& group, int source,
                        const WalkProgress& progress);

}  // namespace troupe::train
