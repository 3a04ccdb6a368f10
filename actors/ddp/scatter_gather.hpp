/// A batch cut up over devices, and what the replicas return put together. Works on whatever
/// for_each_tensor() knows: tensors, and vectors, arrays, pairs, tuples, maps and optionals of such.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/ddp/tensors_in.hpp"

namespace troupe::train {

/// One replica's part of a batch: samples [begin, begin + size) of dimension dim.
struct Chunk {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

/// How `samples` are cut up over `devices`: `chunk_sizes`, or where that is empty as torch::chunk does, in
/// equal parts of which the last may be smaller. Fewer samples than devices: fewer chunks, at least one.
/// Throws BadInput where chunk_sizes do not sum up to `samples`.
std::vector<Chunk> chunks_of(std::int64_t samples, std::size_t devices,
                             const std::vector<std::int64_t>& chunk_sizes);

/// The samples of a tensor with dimensions, which are to be as many as `known`, those of the tensors before
/// it. Throws BadInput, also for a tensor without dimension `dim`.
std::int64_t samples_of(const torch::Tensor& tensor, std::int64_t dim, std::optional<std::int64_t> known);

/// Along `dim` on `device`; scalars become a vector of one element each.
torch::Tensor gather_tensors(const std::vector<torch::Tensor>& parts, std::int64_t dim, torch::Device device);

/// Throws BadInput: replicas returned containers that cannot be put together.
[[noreturn]] void refuse_to_gather(const std::string& why);

/// A copy whose tensors are on `device`.
template <class T>
T on_device(T value, torch::Device device) {
  for_each_tensor(value, [&](torch::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.to(device);
  });
  return value;
}

/// A copy whose tensors are narrowed to `chunk`, on `device`. One without dimensions has no samples: the
/// whole of it.
template <class T>
T scatter(T value, std::int64_t dim, const Chunk& chunk, torch::Device device) {
  for_each_tensor(value, [&](torch::Tensor& tensor) {
    if (tensor.defined() && tensor.dim() > 0) tensor = tensor.narrow(dim, chunk.begin, chunk.size);
  });
  return on_device(std::move(value), device);
}

/// Whether gather() loses no tensor of a T: tensors, containers of them, and what has none in it: numbers,
/// enums, strings, and containers of those. Not a struct, since nothing tells its fields.
template <class T>
constexpr bool can_gather() {
  if constexpr (TensorMap<T>) {
    return can_gather<typename T::mapped_type>();
  } else if constexpr (TensorTuple<T>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (can_gather<std::tuple_element_t<I, T>>() && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (TensorOptional<T>) {
    return can_gather<std::remove_cvref_t<decltype(*std::declval<const T&>())>>();
  } else if constexpr (std::ranges::range<T>) {
    using Value = std::ranges::range_value_t<T>;
    if constexpr (!std::is_same_v<Value, T>) return can_gather<Value>();
    return false;
  } else {
    return std::is_same_v<T, torch::Tensor> || std::is_arithmetic_v<T> || std::is_enum_v<T>;
  }
}

/// Of what every replica returned, one value: tensors by gather_tensors(), anything else is the first one's
/// (see can_gather()). Throws BadInput where lengths or keys differ.
template <class T>
T gather(const std::vector<const T*>& parts, std::int64_t dim, torch::Device device) {
  const T& first = *parts.front();
  const auto of_each = [&](auto&& select) {
    std::vector<decltype(select(first))> selected;
    for (const T* part : parts) selected.push_back(select(*part));
    return selected;
  };
  if constexpr (std::is_same_v<T, torch::Tensor>) {
    return gather_tensors(of_each([](const T& part) { return part; }), dim, device);
  } else if constexpr (TensorMap<T>) {
    T whole;
    for (const auto& [key, value] : first) {
      whole.emplace(key, gather(of_each([&key = key](const T& part) {
                                  const auto found = part.find(key);
                                  if (found == part.end()) refuse_to_gather("the keys of a map differ");
                                  return &found->second;
                                }),
                                dim, device));
    }
    for (const T* part : parts) {
      if (part->size() != first.size()) refuse_to_gather("the keys of a map differ");
    }
    return whole;
  } else if constexpr (TensorTuple<T>) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{gather(of_each([](const T& part) { return &std::get<I>(part); }), dim, device)...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (TensorOptional<T>) {
    for (const T* part : parts) {
      if (part->has_value() != first.has_value()) refuse_to_gather("some have a value, and others none");
    }
    if (!first.has_value()) return first;
    return T(gather(of_each([](const T& part) { return &*part; }), dim, device));
  } else if constexpr (TensorRange<T>) {
    T whole = first;
    std::size_t at = 0;
    for (const T* part : parts) {
      if (part->size() != first.size()) {
        refuse_to_gather("a container has " + std::to_string(first.size()) + " elements on the first, and " +
                         std::to_string(part->size()) + " on another");
      }
    }
    for (auto& one : whole) {
      one = gather(of_each([&](const T& part) { return &*std::next(part.begin(), at); }), dim, device);
      ++at;
    }
    return whole;
  } else {
    return first;
  }
}

}  // namespace troupe::train
