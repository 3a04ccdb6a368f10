/// From stored bytes to normalised floats: the inner loop of every image dataset.
#pragma once

#include <cstdint>
#include <span>

#include "actors/data/dataset.hpp"

namespace troupe::data {

/// What every pixel goes through: (pixel / 255 - mean) / std. Default: pixels in [0, 1].
struct Normalize {
  float mean = 0.0F;
  float std = 1.0F;
};

/// (pixel / 255 - mean) / std as one multiplication and one addition, each rounded: within 2 units in the
/// last place of the operands of torchvision's ToTensor and Normalize, at a third of the time, and the same
/// bits on every machine. Thread-safe.
class PixelNormalizer {
 public:
  /// Throws BadConfig when `std` is not a positive finite number or `mean` is not finite.
  explicit PixelNormalizer(Normalize normalize);
  /// REQUIRES: pixels.size() == out.size().
  void apply(std::span<const std::uint8_t> pixels, std::span<float> out) const;
  /// The same of floats, which are taken to be pixel / 255 already.
  void apply(std::span<const float> values, std::span<float> out) const;

 private:
  float scale_;
  float offset_;
};

/// The fields of an image and its class: "input", float32, and "target", int64.
std::vector<FieldSpec> image_fields(Shape image);
/// Writes the class to the place of "target".
void write_target(std::span<const std::span<std::byte>> places, std::int64_t target);
/// The place of "input".
std::span<float> input_place(std::span<const std::span<std::byte>> places);

}  // namespace troupe::data
