/// Map-style datasets: a size and access by index. What a loader actor gathers batches from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::data {

/// Which part of a dataset.
enum class Split { kTrain, kTest };

/// "train" or "test".
constexpr const char* split_name(Split split) {
  return split == Split::kTrain ? "train" : "test";
}

/// The shape of one sample's input, channels first as LibTorch has it.
struct SampleShape {
  std::int32_t channels = 1;
  std::int32_t height = 28;
  std::int32_t width = 28;
  /// Floats a sample.
  std::size_t floats() const {
    return static_cast<std::size_t>(channels) * static_cast<std::size_t>(height) *
           static_cast<std::size_t>(width);
  }
  bool operator==(const SampleShape&) const = default;
};

/// What every sample goes through: (pixel / 255 - mean) / std. Default: pixels in [0, 1].
struct Normalize {
  float mean = 0.0F;
  float std = 1.0F;
};

/// Immutable once constructed: every method is const and safe to call from many threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Number of samples, at least 1.
  virtual std::int64_t size() const = 0;
  virtual SampleShape shape() const = 0;
  /// Writes sample `index`, normalised, to `out` and returns its class.
  /// REQUIRES: 0 <= index < size(), out.size() == shape().floats().
  virtual std::int64_t get(std::int64_t index, std::span<float> out) const = 0;
  /// Hint that `index` is wanted soon. A shuffled gather is bound by cache misses: fetching two samples ahead
  /// doubles its speed.
  virtual void prefetch(std::int64_t /*index*/) const {}
};

}  // namespace troupe::data
