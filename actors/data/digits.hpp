/// Rendered digits: a stand-in for MNIST that needs no file and no network.
#pragma once

#include <array>
#include <cstdint>

#include "actors/data/dataset.hpp"
#include "actors/data/pixels.hpp"

namespace troupe::data {

/// What to render.
struct DigitsOptions {
  std::int64_t size = 0;  ///< 0: as MNIST, 60,000 (train) or 10,000 (test)
  std::uint64_t seed = 0;
  float mean = 0.0F;  ///< of a pixel in [0, 1]; rendered digits: 0.145
  float std = 1.0F;   ///< rendered digits: 0.251
};

/// Digits as a pen would write them, 28x28: glyph strokes with displaced points, turned, slanted, scaled,
/// shifted, drawn with pens of several widths, on noise. Sample `index` is a function of (seed, split, index)
/// alone, with IEEE arithmetic only (no sin or cos), so every machine renders the same bytes. About 100,000
/// samples a second. Thread-safe.
class Digits final : public FixedDataset {
 public:
  static constexpr std::int32_t kSide = 28;
  using Image = std::array<std::uint8_t, static_cast<std::size_t>(kSide) * kSide>;

  /// Throws BadConfig for a negative size or a std that cannot divide.
  explicit Digits(Split split, DigitsOptions options = {});

  std::int64_t size() const override { return size_; }
  /// "input": float32 [1, 28, 28]; "target": int64, the class.
  std::vector<FieldSpec> fields() const override { return image_fields({1, kSide, kSide}); }
  bool uses_random_alone() const override { return true; }
  void write(std::int64_t index, Random& random, std::span<const std::span<std::byte>> places) const override;
  /// The sample before normalisation. Returns its class. REQUIRES: 0 <= index < size().
  std::int64_t render(std::int64_t index, Image& image) const;

 private:
  PixelNormalizer normalizer_;
  std::int64_t size_;
  std::uint64_t stream_;  // what all samples' streams derive from
};

}  // namespace troupe::data
