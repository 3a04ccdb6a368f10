#include "actors/data/pixels.hpp"

#include <cmath>
#include <cstring>
#include <string>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {

PixelNormalizer::PixelNormalizer(Normalize normalize) {
  if (!std::isfinite(normalize.mean) || !std::isfinite(normalize.std) || normalize.std <= 0.0F) {
    throw BadConfig("cannot normalise pixels",
                    "mean " + std::to_string(normalize.mean) + " and std " + std::to_string(normalize.std) +
                        " are not a finite mean and a positive finite std",
                    "MNIST has mean 0.1307 and std 0.3081");
  }
  scale_ = static_cast<float>(1.0 / (255.0 * static_cast<double>(normalize.std)));
  offset_ = static_cast<float>(-static_cast<double>(normalize.mean) / static_cast<double>(normalize.std));
}

void PixelNormalizer::apply(std::span<const std::uint8_t> pixels, std::span<float> out) const {
  TROUPE_ASSERT(pixels.size() == out.size(), "one float a pixel");
  const std::uint8_t* __restrict from = pixels.data();
  float* __restrict to = out.data();
  const float scale = scale_;
  const float offset = offset_;
  const std::size_t count = pixels.size();
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]) * scale + offset;
}

void PixelNormalizer::apply(std::span<const float> values, std::span<float> out) const {
  TROUPE_ASSERT(values.size() == out.size(), "one float a value");
  const float scale = scale_ * 255.0F;
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = values[i] * scale + offset_;
}

std::vector<FieldSpec> image_fields(Shape image) {
  return {{"input", DType::kFloat32, std::move(image)}, {"target", DType::kInt64, {}}};
}

void write_target(std::span<const std::span<std::byte>> places, std::int64_t target) {
  TROUPE_ASSERT(places.size() == 2 && places[1].size() == sizeof target, "the places of an image's fields");
  std::memcpy(places[1].data(), &target, sizeof target);
}

std::span<float> input_place(std::span<const std::span<std::byte>> places) {
  TROUPE_ASSERT(places.size() == 2, "the places of an image's fields");
  return {reinterpret_cast<float*>(places[0].data()), places[0].size() / sizeof(float)};
}

}  // namespace troupe::data
