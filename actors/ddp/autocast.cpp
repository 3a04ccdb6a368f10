#include "actors/ddp/autocast.hpp"

#include <ATen/autocast_mode.h>

#include <string>

#include "runtime/core/error.hpp"

namespace troupe::train {

namespace {

/// That may be cast to on `device`.
torch::ScalarType checked(torch::DeviceType device, std::optional<torch::ScalarType> dtype) {
  if (device != torch::kCPU && device != torch::kCUDA) {
    throw BadConfig("no autocast on " + c10::DeviceTypeName(device, /*lower_case=*/true),
                    "it is there for the CPU and for CUDA", "use torch::kCPU or torch::kCUDA");
  }
  const bool cuda = device == torch::kCUDA;
  const auto chosen = dtype.value_or(cuda ? torch::kFloat16 : torch::kBFloat16);
  if (chosen == torch::kBFloat16 || (cuda && chosen == torch::kFloat16)) return chosen;
  throw BadConfig(std::string("no autocast to ") + torch::toString(chosen),
                  cuda ? "CUDA has float16 and bfloat16" : "the CPU has bfloat16 alone",
                  "use torch::kBFloat16");
}

}  // namespace

Autocast::Autocast(torch::DeviceType device, std::optional<torch::ScalarType> dtype, bool enabled)
    : Autocast(device, AutocastState{enabled, checked(device, dtype)}) {}

Autocast::Autocast(torch::DeviceType device, const AutocastState& state)
    : device_(device), before_(autocast_of(device)) {
  at::autocast::increment_nesting();
  set_autocast(device, state);
}

Autocast::~Autocast() {
  // The outermost drops the casts of parameters that it kept.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_autocast(device_, before_);
}

}  // namespace troupe::train
