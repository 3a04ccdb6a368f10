/// The tensors in what modules take and return: a tensor, or vectors, arrays, pairs, tuples, maps and
/// optionals of such, nested in any way.
#pragma once

#include <torch/types.h>

#include <iterator>
#include <ranges>
#include <tuple>
#include <type_traits>

namespace troupe::train {

template <class T>
concept TensorMap = std::ranges::range<T> && requires {
  typename T::mapped_type;
};
/// Not of numbers or characters, which have no tensors in them.
template <class T>
concept TensorRange =
    std::ranges::forward_range<T> && !TensorMap<T> && std::is_class_v<std::ranges::range_value_t<T>> &&
    !std::is_same_v<std::ranges::range_value_t<T>, T>;
template <class T>
concept TensorTuple = requires {
  std::tuple_size<T>::value;
}
&&!std::ranges::range<T>;
template <class T>
concept TensorOptional = requires(const T& value) {
  { value.has_value() } -> std::same_as<bool>;
  *value;
};

/// Calls visit(tensor) for each, in order. What is no container has none.
template <class T, class Visit>
void for_each_tensor(T& value, Visit&& visit) {
  using Bare = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Bare, torch::Tensor>) {
    visit(value);
  } else if constexpr (TensorMap<Bare>) {
    for (auto& item : value) for_each_tensor(item.second, visit);
  } else if constexpr (TensorTuple<Bare>) {
    std::apply([&](auto&... parts) { (for_each_tensor(parts, visit), ...); }, value);
  } else if constexpr (TensorOptional<Bare>) {
    if (value.has_value()) for_each_tensor(*value, visit);
  } else if constexpr (TensorRange<Bare>) {
    for (auto& one : value) for_each_tensor(one, visit);
  }
}

}  // namespace troupe::train
