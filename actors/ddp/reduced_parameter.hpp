/// The parameters whose gradients are reduced, and the hooks that tell when one is there. Both reducers stand
/// on it: train/reducer.hpp (leaves of a job) and ddp/bucket_reducer.hpp (one gradient a rank).
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/ddp/buckets.hpp"
#include "actors/ddp/named_tensor.hpp"
#include "actors/ddp/torch_compat.hpp"
#include "collectives/types.hpp"

namespace troupe::train {

struct ReducedParameter {
  std::string name;
  torch::Tensor tensor;
  collectives::DType dtype = collectives::DType::kFloat32;
  std::size_t bucket = 0;  ///< where it lies
  std::size_t member = 0;
};

/// Those of `named` that require a gradient. Throws BadConfig, with the name, for one whose type cannot be
/// reduced or that is not on `device`.
std::vector<ReducedParameter> reduced_parameters(const std::vector<NamedTensor>& named, torch::Device device);

/// For make_buckets.
std::vector<BucketItem> bucket_items(const std::vector<ReducedParameter>& parameters);
/// Names of the parameters of each bucket.
std::vector<std::vector<std::string>> names_of(const std::vector<Bucket>& buckets,
                                               const std::vector<ReducedParameter>& parameters);
/// Sets where each parameter lies.
void place_in(const std::vector<Bucket>& buckets, std::vector<ReducedParameter>& parameters);

/// Calls `ready(index)` when the gradient of a parameter has been accumulated into its `.grad`, in the thread
/// that runs its backward. Keeps the parameters' accumulators alive, and removes the hooks at its end.
class GradientHooks {
 public:
  using Ready = std::function<void(std::size_t)>;
  GradientHooks(const std::vector<ReducedParameter>& parameters, Ready ready);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// The first of `parameters`, those it was made with, whose gradients it no longer hears of: their data
  /// were replaced, by torch::load or to().
  std::optional<std::size_t> lost(const std::vector<ReducedParameter>& parameters) const;

 private:
  struct Hook;
  struct Installed {
    GradNode accumulator;  ///< kept alive, or the graph would make an unhooked one
    std::uintptr_t hook = 0;
  };
  Ready ready_;
  std::vector<Installed> installed_;
};

/// A tensor over `data`, laid out as `like` (autograd's layout contract); `owner` lives as long as the
/// tensor.
torch::Tensor view_like(const torch::Tensor& like, void* data, std::shared_ptr<void> owner);
bool same_layout(const torch::Tensor& a, const torch::Tensor& b);
/// Copies with memcpy where the bytes lie the same way: a tenth of the overhead of Tensor::copy_.
void put(const torch::Tensor& into, const torch::Tensor& gradient);
/// "a, b, c".
std::string listed(const std::vector<std::string>& names);

}  // namespace troupe::train
