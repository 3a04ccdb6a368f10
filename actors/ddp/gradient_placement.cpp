#include "actors/ddp/gradient_placement.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <utility>

#include "actors/ddp/torch_compat.hpp"

namespace troupe::train {
namespace {

/// A parameter whose gradient was missed this often is not guessed again: its graph changes from step to
/// step.
constexpr int kWrongGuesses_max = 3;

/// The placement that this thread's backward runs under.
thread_local GradientPlacement* active = nullptr;

/// LibTorch's own allocator, but for allocations that a placement asks for.
class PlacingAllocator final : public c10::Allocator {
 public:
  explicit PlacingAllocator(c10::Allocator& base) : base_(base) {}

  c10::DataPtr allocate(std::size_t bytes) TROUPE_ALLOCATE_CONST override {
    if (!active) return base_.allocate(bytes);
    if (auto place = active->place(bytes); place.data) {
      auto* life = new std::shared_ptr<void>(std::move(place.life));
      return {place.data, life, &end_life, c10::DeviceType::CPU};
    }
    c10::DataPtr made = base_.allocate(bytes);
    active->allocated(bytes, made.get());
    return made;
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_.raw_deleter(); }
  // Pure in 2.x, unknown in 1.13.
  void copy_data(void* to, const void* from, std::size_t count) const TROUPE_COPY_DATA_OVERRIDE {
    std::memcpy(to, from, count);
  }

 private:
  static void end_life(void* life) { delete static_cast<std::shared_ptr<void>*>(life); }
  c10::Allocator& base_;
};

void install_allocator() {
  // Lives as long as the process: tensors may be freed after any static of ours.
  static auto* const allocator = new PlacingAllocator(*c10::GetCPUAllocator());
  c10::SetCPUAllocator(allocator);
}

}  // namespace

GradientPlacement::GradientPlacement(const std::vector<std::size_t>& gradient_bytes) {
  install_allocator();
  for (std::size_t i = 0; i < gradient_bytes.size(); ++i) {
    parameters_.push_back({gradient_bytes[i], -1, 0, {}});
    if (gradient_bytes[i] >= kSmallest_bytes) sizes_[gradient_bytes[i]].parameters.push_back(i);
  }
}

GradientPlacement::~GradientPlacement() {
  end_backward();
}

void GradientPlacement::begin_backward(const std::vector<Slot>& slots) {
  slots_ = &slots;
  for (auto& [bytes, size] : sizes_) {
    size.allocations = 0;
    size.seen.clear();
  }
  active = this;
}

void GradientPlacement::end_backward() {
  if (active == this) active = nullptr;
}

GradientPlacement::Place GradientPlacement::place(std::size_t bytes) {
  const auto size = sizes_.find(bytes);
  if (size == sizes_.end()) return {};
  const int ordinal = size->second.allocations++;
  for (const std::size_t index : size->second.parameters) {
    Parameter& parameter = parameters_[index];
    if (parameter.ordinal != ordinal || occupied(index)) continue;
    const Slot& slot = (*slots_)[index];
    if (!slot.data) return {};
    // A pointer of its own to count the tensor's life by; the owner goes along.
    Place place{slot.data, std::make_shared<std::shared_ptr<void>>(slot.owner)};
    parameter.lives = place.life;
    return place;
  }
  return {};
}

void GradientPlacement::allocated(std::size_t bytes, void* data) {
  const auto size = sizes_.find(bytes);
  if (size != sizes_.end()) size->second.seen.push_back({data, size->second.allocations - 1});
}

bool GradientPlacement::landed(std::size_t index, const torch::Tensor& gradient) {
  Parameter& parameter = parameters_[index];
  if (parameter.bytes < kSmallest_bytes || parameter.wrong == kWrongGuesses_max) return false;
  if (parameter.ordinal >= 0) {
    if (gradient.data_ptr() == (*slots_)[index].data) return true;
    parameter.ordinal = -1;
    ++parameter.wrong;
    return false;
  }
  // The last one: memory that was freed in between may have been given out again.
  for (const Seen& seen : sizes_.at(parameter.bytes).seen) {
    if (seen.data == gradient.data_ptr()) parameter.ordinal = seen.ordinal;
  }
  return false;
}

}  // namespace troupe::train
