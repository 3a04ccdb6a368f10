/// LibTorch's map-style datasets as ours, with the transforms of their map():
///
///     auto dataset(data::Split split) const {
///       const auto mode = split == data::Split::kTrain ? MNIST::Mode::kTrain : MNIST::Mode::kTest;
///       return data::from_torch(MNIST(folder, mode).map(torch::data::transforms::Normalize<>(0.13, 0.31)));
///     }
#pragma once

#include <torch/torch.h>  // torch/data/datasets/map.h of 1.13 does not compile by itself

#include <concepts>
#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/data/dataset.hpp"
#include "actors/data/torch.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {
namespace detail {

template <class T>
concept TorchDatasetLike = requires(T& dataset) {
  typename T::BatchType;
  typename T::BatchRequestType;
  { T::is_stateful } -> std::convertible_to<bool>;
  dataset.size();
};

template <class T>
struct ElementIn {
  using type = T;
  static constexpr bool kIsList = false;
};
template <class T>
struct ElementIn<std::vector<T>> {
  using type = T;
  static constexpr bool kIsList = true;
};

template <class T>
concept UnlabeledExample = std::same_as<std::remove_cvref_t<T>, torch::data::TensorExample>;
template <class T>
concept LabeledExample = requires(const T& example) {
  { example.data } -> std::convertible_to<torch::Tensor>;
  { example.target } -> std::convertible_to<Tensor>;
};

}  // namespace detail

/// A dataset of torch::data as one of ours; see from_torch().
template <class T>
class TorchDataset final : public Dataset {
  static_assert(detail::TorchDatasetLike<T>,
                "from_torch() takes a dataset of torch::data: a class that derives from "
                "torch::data::datasets::Dataset, or what its map() returns");
  using Request = typename T::BatchRequestType;
  using Batch = typename T::BatchType;
  static_assert(!T::is_stateful,
                "from_torch() takes no stateful dataset: which samples it gives depends on what was read "
                "before, so another loader could not go on from it; give access by index "
                "(torch::data::datasets::Dataset), or write a stream (troupe::data::indexed)");
  static_assert(T::is_stateful || std::is_same_v<Request, c10::ArrayRef<std::size_t>>,
                "from_torch() takes no stream dataset: it gives samples without an index; give access by "
                "index (torch::data::datasets::Dataset), or write a stream (troupe::data::indexed)");
  /// A list of examples, or what transforms::Stack made of one.
  using Example = typename detail::ElementIn<Batch>::type;
  static constexpr bool kStacked = !detail::ElementIn<Batch>::kIsList;
  static_assert(detail::UnlabeledExample<Example> || detail::LabeledExample<Example>,
                "from_torch() takes datasets of torch::data::Example<> or torch::data::TensorExample; map() "
                "other examples to one of them");

 public:
  /// Throws BadConfig for a dataset that does not know its size.
  explicit TorchDataset(T dataset) : shared_(std::make_shared<Shared>(std::move(dataset))) {
    const auto size = shared_->dataset.size();
    if (!size) {
      throw BadConfig("cannot use a dataset of LibTorch's", "its size() says that it does not know",
                      "use one with a size and access by index");
    }
    size_ = static_cast<std::int64_t>(*size);
  }

  std::int64_t size() const override { return size_; }
  /// Fields "input" and, where the examples have targets, "target".
  Sample get(std::int64_t index, Random& /*random*/) const override {
    const auto at = static_cast<std::size_t>(index);
    const std::lock_guard lock(shared_->mutex);
    auto batch = shared_->dataset.get_batch(Request(at));
    if constexpr (kStacked) {
      return sample_of(batch, [](const torch::Tensor& tensor) { return tensor.select(0, 0); });
    } else {
      return sample_of(batch.at(0), [](const auto& value) { return value; });
    }
  }

 private:
  /// get_batch() is not const.
  struct Shared {
    explicit Shared(T wrapped) : dataset(std::move(wrapped)) {}
    T dataset;
    std::mutex mutex;
  };

  template <class Only>
  static Sample sample_of(const Example& example, const Only& only) {
    if constexpr (detail::UnlabeledExample<Example>) {
      return {{"input", only(example.data)}};
    } else {
      return {{"input", only(example.data)}, {"target", only(example.target)}};
    }
  }

  std::shared_ptr<Shared> shared_;
  std::int64_t size_ = 0;
};

/// A map-style dataset of LibTorch's, of Example<> or TensorExample, with what its map() was given:
/// transforms of single samples, or transforms::Stack, which is undone. The fields are `input` and `target`.
/// What a transform draws from LibTorch's default generator is the same in every loader: that is seeded
/// before each sample. A dataset that is stateful, or a stream, does not compile.
template <class T>
TorchDataset<T> from_torch(T dataset) {
  return TorchDataset<T>(std::move(dataset));
}

}  // namespace troupe::data
