#include "actors/data/digits.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "actors/data/digit_glyphs.hpp"
#include "runtime/core/error.hpp"

using namespace troupe;
using namespace troupe::data;

namespace {

/// FNV-1a over the images and classes of the first samples: the golden of the renderer.
std::uint64_t fingerprint(const Digits& digits, std::int64_t count) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  Digits::Image image;
  for (std::int64_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(digits.render(i, image))) * 0x100000001b3ULL;
    for (const auto pixel : image) hash = (hash ^ pixel) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

TEST_CASE("a sample is a function of seed, split and index") {
  const Digits train(Split::kTrain);
  const Digits test(Split::kTest);
  CHECK(train.size() == 60'000);
  CHECK(test.size() == 10'000);
  Digits::Image once;
  Digits::Image again;
  const auto label = train.render(12'345, once);
  train.render(1, again);
  CHECK(train.render(12'345, again) == label);
  CHECK(once == again);
  CHECK(Digits(Split::kTrain, {.size = 20'000}).render(12'345, again) == label);
  CHECK(once == again);
  std::set<std::uint64_t> all{fingerprint(train, 50), fingerprint(test, 50),
                              fingerprint(Digits(Split::kTrain, {.seed = 1}), 50)};
  CHECK(all.size() == 3);
}

TEST_CASE("every machine renders the same bytes") {
  CHECK(fingerprint(Digits(Split::kTrain), 500) == 0x74c1d197a1ad9122ULL);  // golden
}

TEST_CASE("classes are balanced and samples have ink inside the picture") {
  const Digits digits(Split::kTrain, {.size = 5'000});
  std::vector<int> of_class(10);
  Digits::Image image;
  for (std::int64_t i = 0; i < digits.size(); ++i) {
    ++of_class[static_cast<std::size_t>(digits.render(i, image))];
    int inked = 0;
    for (const auto pixel : image) inked += pixel > 128 ? 1 : 0;
    CHECK(inked >= 10);
    CHECK(inked <= 400);
  }
  for (const int count : of_class) CHECK(std::abs(count - 500) < 100);
}

TEST_CASE("normalised output and refusals") {
  const Digits digits(Split::kTest, {.mean = 0.155, .std = 0.247});
  Digits::Image image;
  troupe::data::Random random({}, 7);
  const auto sample = digits.get(7, random);
  const auto out = sample["input"].values<float>();
  CHECK(sample["input"].shape() == Shape{1, 28, 28});
  CHECK(sample["target"].values<std::int64_t>()[0] == digits.render(7, image));
  for (std::size_t i = 0; i < out.size(); ++i) {
    CHECK(out[i] == Approx((static_cast<float>(image[i]) / 255.0F - 0.155F) / 0.247F).margin(1e-5));
  }
  CHECK_THROWS_AS(Digits(Split::kTest, {.size = -1}), BadConfig);
  for (int digit = 0; digit <= 9; ++digit) CHECK_FALSE(glyphs_of(digit).empty());
}
