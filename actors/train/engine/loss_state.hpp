/// What loss() may change of the state: the model's buffers, and the numbers and random streams that the job
/// declared (job/user_state.hpp). Each leaf begins with the committed ones, and leaf 0's are the step's.
#pragma once

#include <utility>
#include <vector>

#include "actors/ddp/buffer_pack.hpp"
#include "actors/train/job/user_state.hpp"

namespace troupe::train {

/// As bytes, used as BufferPack is. What the job declared is in the host's memory: to copy it, a device is
/// waited for.
class LossState {
 public:
  /// `declared`: what is not changed in loss() is passed over.
  LossState(std::vector<NamedTensor> buffers, const StateRegistry& declared, torch::Device device)
      : device_(device), pack_(with_declared(std::move(buffers), declared), device) {}

  /// Memory that save() fills.
  torch::Tensor memory() const {
    return torch::empty({static_cast<std::int64_t>(pack_.size_bytes())},
                        torch::TensorOptions(torch::kUInt8).device(device_));
  }
  void save(torch::Tensor& flat) const {
    for (const Declared& one : declared_) one.copy.copy_(one.part.read());
    pack_.save(flat);
  }
  void restore(const torch::Tensor& flat) const {
    pack_.restore(flat);
    for (const Declared& one : declared_) one.part.write(one.copy.cpu());
  }

 private:
  struct Declared {
    UserPart part;
    torch::Tensor copy;  ///< on its way from and to the pack
  };
  std::vector<NamedTensor> with_declared(std::vector<NamedTensor> all, const StateRegistry& declared) {
    for (const UserPart& part : declared.parts()) {
      if (!part.in_loss) continue;
      declared_.push_back({part, part.read().clone().to(device_)});
      all.push_back({part.name, declared_.back().copy});
    }
    return all;
  }

  torch::Device device_;
  std::vector<Declared> declared_;
  BufferPack pack_;
};

}  // namespace troupe::train
