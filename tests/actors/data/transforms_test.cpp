#include "actors/data/transforms.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <set>

#include "actors/data/batch_builder.hpp"

using namespace troupe;
using namespace troupe::data;

namespace {

/// A picture of two channels, 3 x 4, whose every pixel is its own number.
Tensor picture() {
  std::vector<std::uint8_t> pixels(24);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{1});
  return {pixels, {2, 3, 4}};
}

std::vector<std::uint8_t> apply(const Transform& transform, std::int64_t index, Shape& shape) {
  data::Random random({1, 0}, index);
  const auto out = transform(picture(), random);
  shape = out.shape();
  const auto values = out.values<std::uint8_t>();
  return {values.begin(), values.end()};
}

struct Pictures {
  std::int64_t size() const { return 100; }
  Sample get(std::int64_t index, data::Random&) const { return {{"input", picture()}, {"target", index}}; }
};

}  // namespace

TEST_CASE("normalize is torchvision's, a channel at a time") {
  data::Random random({}, 0);
  const auto out = normalize({0.5F, 0.25F}, {0.5F, 2.0F})(picture(), random);
  CHECK(out.dtype() == DType::kFloat32);
  for (std::size_t i = 0; i < 24; ++i) {
    const float pixel = static_cast<float>(i + 1) / 255.0F;
    const float expected = i < 12 ? (pixel - 0.5F) / 0.5F : (pixel - 0.25F) / 2.0F;
    CHECK(out.values<float>()[i] == Approx(expected).margin(1e-6));
  }
  const auto floats = normalize({0.0F}, {1.0F})(picture(), random);
  CHECK(normalize({0.5F}, {0.5F})(floats, random).values<float>()[23] ==
        Approx((24 / 255.0 - 0.5) / 0.5).margin(1e-6));
  CHECK_THROWS_WITH(normalize({0, 0, 0}, {1, 1, 1})(picture(), random), Catch::Contains("2 channels"));
  CHECK_THROWS_AS(normalize({0}, {0}), BadConfig);
  CHECK_THROWS_AS(normalize({0}, {1, 1}), BadConfig);
  CHECK_THROWS_WITH(normalize({0}, {1})(Tensor(1), random), Catch::Contains("[] is no image"));
}

TEST_CASE("a crop is a window of the padded picture, from every place equally often") {
  const auto crop = random_crop(3, {.padding = 1});
  // The picture with a rim of zeros, 5 x 6 a channel.
  std::vector<std::uint8_t> padded(60);
  for (int c = 0; c < 2; ++c) {
    for (int y = 0; y < 3; ++y) {
      for (int x = 0; x < 4; ++x)
        padded[static_cast<std::size_t>((c * 5 + y + 1) * 6 + x + 1)] =
            static_cast<std::uint8_t>((c * 3 + y) * 4 + x + 1);
    }
  }
  std::vector<int> from(12);
  for (std::int64_t index = 0; index < 1200; ++index) {
    Shape shape;
    const auto out = apply(crop, index, shape);
    CHECK(shape == Shape{2, 3, 3});
    int matches = 0;
    for (std::size_t place = 0; place < 12; ++place) {
      const std::size_t top = place / 4;
      const std::size_t left = place % 4;
      bool same = true;
      for (std::size_t i = 0; i < 18; ++i) {
        const std::size_t c = i / 9;
        same = same && out[i] == padded[(c * 5 + top + i % 9 / 3) * 6 + left + i % 3];
      }
      if (same) ++matches, ++from[place];
    }
    CHECK(matches == 1);
  }
  for (const int count : from) CHECK(std::abs(count - 100) < 40);
  Shape shape;
  CHECK_THROWS_WITH(apply(random_crop(4), 0, shape), Catch::Contains("it is smaller"));
  CHECK_THROWS_AS(random_crop(0), BadConfig);
  CHECK_THROWS_AS(random_crop(4, {.padding = -1}), BadConfig);
}

TEST_CASE("a flip mirrors left and right, as often as it was told") {
  Shape shape;
  CHECK(apply(random_horizontal_flip(0), 0, shape)[0] == 1);
  const auto mirrored = apply(random_horizontal_flip(1), 0, shape);
  for (std::size_t i = 0; i < 24; ++i) CHECK(mirrored[i] == i / 4 * 4 + (3 - i % 4) + 1);
  int flipped = 0;
  for (std::int64_t index = 0; index < 1000; ++index)
    flipped += apply(random_horizontal_flip(), index, shape)[0] == 4 ? 1 : 0;
  CHECK(std::abs(flipped - 500) < 60);
  data::Random random({}, 0);
  for (const std::int64_t width : {1, 7, 8, 9, 32}) {
    std::vector<std::uint8_t> rows(static_cast<std::size_t>(2 * width));
    std::iota(rows.begin(), rows.end(), std::uint8_t{1});
    const auto made = random_horizontal_flip(1)(Tensor(rows, Shape{1, 2, width}), random);
    for (const auto row : {rows.begin(), rows.begin() + width}) std::reverse(row, row + width);
    CHECK(std::ranges::equal(made.values<std::uint8_t>(), rows));
  }
  const Tensor wide(std::vector<double>{1, 2, 3}, Shape{1, 1, 3});
  CHECK(random_horizontal_flip(1)(wide, random).values<double>()[0] == 3);
  CHECK_THROWS_AS(random_horizontal_flip(1.5), BadConfig);
}

TEST_CASE("a mapped dataset draws from the sample's own numbers") {
  const auto augment = compose(random_crop(3, {.padding = 2}), random_horizontal_flip(), normalize({0}, {1}));
  const Mapped mapped = map(Pictures{}, augment);
  CHECK(mapped.size() == 100);
  const auto pixels = [&](RandomKey key, std::int64_t index) {
    data::Random random(key, index);
    const auto sample = mapped.get(index, random);
    CHECK(sample["target"].values<std::int64_t>()[0] == index);
    const auto values = sample["input"].values<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  CHECK(pixels({5, 1}, 7) == pixels({5, 1}, 7));
  std::set<std::vector<float>> different;
  for (std::int64_t index = 0; index < 20; ++index) different.insert(pixels({5, 1}, index));
  CHECK(different.size() > 10);
  const Mapped doubled = map(mapped, [](Sample sample, data::Random&) {
    sample.set("weight", 2.0);
    return sample;
  });
  data::Random random({}, 1);
  CHECK(doubled.get(1, random).fields().size() == 3);
  CHECK_THROWS_WITH(map(Pictures{}, augment, "image").get(1, random), Catch::Contains("'image'"));
}
