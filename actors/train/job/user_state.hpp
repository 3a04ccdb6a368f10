/// What a job declares of its own state, beyond parameters, buffers and the optimizer's:
///
///     void state(troupe::train::StateRegistry& state, Net& net, Optimizer& optimizer) const {
///       state.add("ema", net->ema);                // a tensor: its memory is read and written in place
///       state.add("warm-up/steps", optimizer.steps);  // a number
///       state.add("noise", net->generator);        // a random stream
///     }
///
/// A number or a random stream may change in loss(), as a buffer may: each logical rank begins with the
/// step's own, and rank 0's goes on. What else is declared changes in apply(), in an optimizer or a
/// scheduler.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe::train {

/// A part that the job declared.
struct UserPart {
  std::string name;
  bool any_size = false;  ///< bytes, as many as there are
  bool in_loss = false;   ///< loss() may change it
  torch::Tensor tensor;   ///< where it is one
  std::function<torch::Tensor()> read;
  std::function<void(const torch::Tensor&)> write;  ///< given what has the type and shape of read()
};

/// Where a number changes. In loss(): it travels with each step, as buffers do.
enum class ChangedIn { kLoss, kApply };

/// Filled once, when the model is made. What is added must live as long as the net and the optimizer.
class StateRegistry {
 public:
  /// A tensor that is changed in place, and not in loss(): there BadConfig is thrown.
  void add(std::string name, const torch::Tensor& tensor) {
    add_part({std::move(name), false, false, tensor, [tensor] { return tensor; },
              [tensor](const torch::Tensor& value) {
                const torch::Tensor plain = tensor.detach();
                (plain.is_complex() ? torch::view_as_real(plain) : plain).copy_(value);
              }});
  }

  /// A number or a flag.
  template <class Number>
  requires std::integral<Number> || std::floating_point<Number>
  void add(std::string name, Number& number, ChangedIn where = ChangedIn::kLoss) {
    using Wide = std::conditional_t<std::integral<Number>, std::int64_t, double>;
    // torch::tensor of a double is float32 by itself.
    constexpr auto kDType = std::integral<Number> ? torch::kInt64 : torch::kFloat64;
    add_part({std::move(name),
              false,
              where == ChangedIn::kLoss,
              {},
              [&number] { return torch::tensor(static_cast<Wide>(number), torch::dtype(kDType)); },
              [&number](const torch::Tensor& value) { number = static_cast<Number>(value.item<Wide>()); }});
  }

  /// A random stream of the job's own. (LibTorch's default one is a function of seed, step and leaf.)
  void add(std::string name, at::Generator generator) {
    add_part({std::move(name),
              false,
              true,
              {},
              [generator] { return generator.get_state(); },
              [generator](const torch::Tensor& value) mutable { generator.set_state(value.clone()); }});
  }

  /// Anything else, as bytes, which loss() must not change: a rehearsal throws BadConfig. `load` is given
  /// what `save` returned, in whichever process.
  void add(std::string name, std::function<std::vector<std::byte>()> save,
           std::function<void(std::span<const std::byte>)> load) {
    add_part({std::move(name),
              true,
              false,
              {},
              [save = std::move(save)] {
                const std::vector<std::byte> bytes = save();
                torch::Tensor part = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
                if (!bytes.empty()) std::memcpy(part.data_ptr(), bytes.data(), bytes.size());
                return part;
              },
              [load = std::move(load)](const torch::Tensor& value) {
                load({static_cast<const std::byte*>(value.data_ptr()), value.nbytes()});
              }});
  }

  const std::vector<UserPart>& parts() const { return parts_; }

 private:
  void add_part(UserPart part) {
    for (const UserPart& other : parts_) {
      if (other.name == part.name)
        throw BadConfig("two parts of the job's state are called '" + part.name + "'",
                        "a part is found by its name", "give each a name of its own");
    }
    parts_.push_back(std::move(part));
  }

  std::vector<UserPart> parts_;
};

}  // namespace troupe::train
