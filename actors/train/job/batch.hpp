/// A batch as the user's model sees it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe::data {

/// One leaf's samples of one step: the fields of the dataset's samples, each with all samples of the batch,
/// [N, ...] unless the dataset collates otherwise. The tensors may be views of memory that the loader takes
/// back after the step: keep a clone, not the tensor.
///
/// `input` and `target` are members, not functions, so that a batch is written and read as the plain pair
/// that it mostly is: `Batch{images, classes}`. Other fields go by name.
struct Batch {
  at::Tensor input{};   ///< the field "input"; undefined where the dataset names none so
  at::Tensor target{};  ///< the field "target"; the same
  std::vector<std::pair<std::string, at::Tensor>> others{};  ///< all fields of other names, in order
  std::int64_t samples = -1;                                 ///< -1: the first extent of `input`

  /// Samples.
  std::int64_t size() const { return samples >= 0 ? samples : input.size(0); }
  /// The field of that name. Throws BadConfig, naming the fields there are.
  const at::Tensor& operator[](std::string_view name) const {
    if (name == "input" && input.defined()) return input;
    if (name == "target" && target.defined()) return target;
    std::string names;
    if (input.defined()) names += "'input' ";
    if (target.defined()) names += "'target' ";
    for (const auto& [other, tensor] : others) {
      if (other == name) return tensor;
      names += "'" + other + "' ";
    }
    throw BadConfig("a batch has no field '" + std::string(name) + "'",
                    names.empty() ? "it has none" : "it has " + names.substr(0, names.size() - 1),
                    "name a field that the dataset's get() or collate() returns");
  }
};

}  // namespace troupe::data
