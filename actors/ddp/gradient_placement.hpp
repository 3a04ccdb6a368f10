/// Lets autograd write gradients where they are reduced, so that nobody copies them.
///
/// AccumulateGrad takes over the tensor that the last kernel of a parameter's backward allocated, so its
/// memory is chosen by LibTorch's CPU allocator. The allocator installed here watches the allocations of a
/// backward: when a gradient turns up in the k-th allocation of its size, the k-th allocation of that size is
/// served from the gradient's slot in the bucket from then on. A guess that turns out wrong is harmless:
/// landed() is false, the caller copies, and occupied() says whether some other tensor lives in the slot for
/// the moment.
///
/// Used by one thread; only allocations of that thread between begin_backward() and end_backward() are looked
/// at.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace troupe::train {

class GradientPlacement {
 public:
  /// Smaller gradients are cheaper to copy than to place.
  static constexpr std::size_t kSmallest_bytes = 4096;

  /// Bytes of each parameter's gradient. Installs the allocator in this process, once.
  explicit GradientPlacement(const std::vector<std::size_t>& gradient_bytes);
  ~GradientPlacement();
  GradientPlacement(const GradientPlacement&) = delete;
  GradientPlacement& operator=(const GradientPlacement&) = delete;

  /// Where a gradient is wanted. `owner` keeps the memory; a tensor that outlives the step holds on to it.
  /// Without `data`: nowhere.
  struct Slot {
    void* data = nullptr;
    std::shared_ptr<void> owner;
  };
  /// One slot a parameter. They stay until the next begin_backward.
  void begin_backward(const std::vector<Slot>& slots);
  void end_backward();

  /// Whether `gradient` lies in the slot of `parameter`. Learns from the answer.
  bool landed(std::size_t parameter, const torch::Tensor& gradient);
  /// Whether a tensor made from the slot is still alive.
  bool occupied(std::size_t parameter) const { return parameters_[parameter].lives.use_count() > 0; }

  /// For the allocator: the memory for an allocation of `bytes`, or none.
  struct Place {
    void* data = nullptr;
    std::shared_ptr<void> life;
  };
  Place place(std::size_t bytes);
  void allocated(std::size_t bytes, void* data);

 private:
  struct Parameter {
    std::size_t bytes = 0;
    int ordinal = -1;  ///< among the backward's allocations of this size; -1: not known yet
    int wrong = 0;     ///< guesses
    std::weak_ptr<void> lives;
  };
  struct Seen {
    void* data = nullptr;
    int ordinal = 0;
  };
  struct SizeClass {
    std::vector<std::size_t> parameters;
    int allocations = 0;     ///< of this backward
    std::vector<Seen> seen;  ///< those that were not placed
  };

  std::vector<Parameter> parameters_;
  std::unordered_map<std::size_t, SizeClass> sizes_;
  const std::vector<Slot>* slots_ = nullptr;
};

}  // namespace troupe::train
