/// Weights as a safetensors file, for tests that serve or load them.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "actors/checkpoint/safetensors.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::e2e {

/// The parameters of the module, all of float32.
inline wire::Bytes weights_of(const torch::nn::Module& net) {
  std::vector<checkpoint::TensorView> views;
  for (const auto& item : net.named_parameters())
    views.push_back({item.key(),
                     checkpoint::DType::kF32,
                     item.value().sizes().vec(),
                     {static_cast<const std::byte*>(item.value().data_ptr()), item.value().nbytes()}});
  return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(views).value());
}
template <class Net>
wire::Bytes weights_of(const torch::nn::ModuleHolder<Net>& net) {
  return weights_of(*net);
}

}  // namespace troupe::e2e
