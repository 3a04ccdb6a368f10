/// The checkpoint that a trainer writes beside the steps: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/train/driver/driver_types.hpp"
#include "actors/train/driver/state_proofs.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::train {

/// A value. Not thread-safe.
///
/// Invariants: it counts when it is written and every member of its barrier has said what it held then; what
/// was given up never counts, and is under way until its writer has ended it.
class CheckpointUnderWay {
 public:
  struct Order {
    ActorId writer{};
    Generation generation;  ///< that it was ordered in
    std::int64_t step = 0;
    std::string history;  ///< of the state that is written
    std::vector<ActorId> members;
    std::optional<Best> best{};  ///< it is the best so far: a better state may not come to be a file
  };

  bool is_on() const { return order_.has_value(); }
  /// REQUIRES: none is.
  void begin(Order order) {
    TROUPE_ASSERT(!order_, "one checkpoint at a time");
    *this = {};
    order_ = std::move(order);
  }
  void end() { order_.reset(); }
  /// REQUIRES: one is.
  const Order& order() const { return *order_; }
  bool is_by(ActorId trainer) const { return order_ && order_->writer == trainer; }
  bool is_of(ActorId writer, Generation generation, std::int64_t step) const {
    return is_by(writer) && order_->generation == generation && order_->step == step;
  }

  /// All have said what they held, and steps go on.
  void copied() { copied_ = true; }
  bool is_copied() const { return copied_; }
  void give_up() { given_up_ = true; }
  bool is_given_up() const { return given_up_; }
  void written(std::string path, StateHash hash) { file_ = {std::move(path), std::move(hash)}; }
  /// Path and hash, once it is written.
  const std::optional<std::pair<std::string, StateHash>>& file() const { return file_; }
  /// What counts now.
  std::optional<CheckpointInfo> complete() const {
    if (!order_ || !copied_ || given_up_ || !file_) return std::nullopt;
    return CheckpointInfo{file_->first, order_->step, file_->second, order_->history};
  }
  /// Of what members hold of it.
  StateProofs& proofs() { return proofs_; }

 private:
  std::optional<Order> order_;
  bool copied_ = false;
  bool given_up_ = false;
  std::optional<std::pair<std::string, StateHash>> file_;
  StateProofs proofs_;
};

}  // namespace troupe::train
