/// A whole TrainState part by part, where no trainer may have room for all of it at once.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "actors/train/engine/state_parts.hpp"

namespace troupe::train {

/// Not thread-safe; until the next step.
class StateWalk {
 public:
  virtual ~StateWalk() = default;
  /// In their order. `bytes` has the size alone: nothing is there.
  virtual const std::vector<StatePart>& parts() const = 0;
  /// Those of a part, until the next call. Where the trainers have it in pieces, it is collective: all ask
  /// for the same ones in the same order, and who is not to have them gets none.
  virtual std::span<const std::byte> bytes(std::size_t part) = 0;
  virtual bool is_collective() const { return true; }
};

/// Of a state that is there.
class WholeWalk final : public StateWalk {
 public:
  WholeWalk(std::vector<StatePart> parts, std::shared_ptr<const void> owner)
      : parts_(std::move(parts)), owner_(std::move(owner)) {}
  const std::vector<StatePart>& parts() const override { return parts_; }
  std::span<const std::byte> bytes(std::size_t part) override { return parts_[part].bytes; }
  bool is_collective() const override { return false; }

 private:
  const std::vector<StatePart> parts_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace troupe::train
