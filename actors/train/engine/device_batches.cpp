#include "actors/train/engine/device_batches.hpp"

namespace troupe::train {

torch::Tensor DeviceBatches::moved(const torch::Tensor& host) const {
  return host.defined() && !device_.is_cpu() ? host.to(device_, /*non_blocking=*/true) : host;
}

data::Batch DeviceBatches::take(const data::Batch& host) {
  data::Batch batch = host;
  const DeviceMark copied = streams_.aside([&] {
    batch.input = moved(host.input);
    batch.target = moved(host.target);
    for (auto& [name, tensor] : batch.others) tensor = moved(tensor);
  });
  streams_.join(copied);
  copied_.push_back(copied);
  // They were allocated for the stream aside: their memory may be used again once the computing one is done.
  const auto lend = [&](const torch::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_cpu()) tensor.record_stream(*streams_.computing());
  };
  lend(batch.input);
  lend(batch.target);
  for (const auto& [name, tensor] : batch.others) lend(tensor);
  return batch;
}

std::size_t DeviceBatches::done() {
  std::size_t done = 0;
  while (done < copied_.size() && copied_[done].reached()) ++done;
  return done;
}

void DeviceBatches::wait() const {
  for (const DeviceMark& mark : copied_) DeviceStreams::wait(mark, [] {});
}

}  // namespace troupe::train
