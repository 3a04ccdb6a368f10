// Parts of a dataset: chosen samples and random splits.
#include "actors/data/subset.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "actors/data/digits.hpp"
#include "actors/data/transforms.hpp"
#include "runtime/core/error.hpp"

using namespace troupe;
using namespace troupe::data;

namespace {

/// Sample i is i; a batch of them says that it was collated.
struct Integers {
  std::int64_t count = 10;
  std::int64_t size() const { return count; }
  Sample get(std::int64_t index, data::Random&) const { return {{"input", index}}; }
  Sample collate(const std::vector<Sample>& samples) const {
    return {{"count", static_cast<std::int64_t>(samples.size())}};
  }
};

std::vector<std::int64_t> values_of(const Dataset& dataset) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    data::Random random({}, i);
    all.push_back(dataset.get(i, random)["input"].values<std::int64_t>()[0]);
  }
  return all;
}

}  // namespace

TEST_CASE("a subset has the samples that it names, and what else its dataset says") {
  const Subset part(Integers{}, {7, 2, 7});
  CHECK(values_of(part) == std::vector<std::int64_t>{7, 2, 7});
  CHECK(part.collate({Sample{}, Sample{}}).value()["count"].values<std::int64_t>()[0] == 2);
  CHECK(values_of(Subset(part, {1})) == std::vector<std::int64_t>{2});
  CHECK(values_of(first_samples(Integers{}, 2)) == std::vector<std::int64_t>{0, 1});
  CHECK(first_samples(Integers{}, 99).size() == 10);
  CHECK_THROWS_WITH(Subset(Integers{}, {0, 10}),
                    Catch::Contains("a subset of 10 samples") && Catch::Contains("it names sample 10"));
  CHECK_THROWS_AS(Subset(Integers{}, {-1}), BadConfig);
  // One that writes straight into a batch still does, the chosen samples.
  const Digits digits(Split::kTrain, {.size = 50});
  const Subset turned(digits, {49, 3});
  REQUIRE(turned.fields().size() == 2);
  data::Random random({}, 0);
  Tensor pixels(DType::kFloat32, {28, 28});
  Tensor label(DType::kInt64, {});
  const std::vector<std::span<std::byte>> places{pixels.fill_bytes(), label.fill_bytes()};
  turned.write(1, random, places);
  const Tensor expected = digits.get(3, random)["input"];
  CHECK(std::ranges::equal(pixels.bytes(), expected.bytes()));
}

TEST_CASE("a random split is PyTorch's, number for number") {
  // torch.utils.data.random_split(range(10), [3, 7], generator=torch.Generator().manual_seed(42))
  const auto parts = random_split(Integers{}, {3, 7}, 42);
  REQUIRE(parts.size() == 2);
  CHECK(values_of(parts[0]) == std::vector<std::int64_t>{2, 6, 1});
  CHECK(values_of(parts[1]) == std::vector<std::int64_t>{8, 4, 5, 0, 9, 3, 7});
  // [0.33, 0.33, 0.34] of 10: 3, 3 and 3, and the one left over goes to the first.
  const auto fractions = split_indices(10, std::vector<double>{0.33, 0.33, 0.34}, 42);
  CHECK(fractions[0] == std::vector<std::int64_t>{2, 6, 1, 8});
  CHECK(fractions[2] == std::vector<std::int64_t>{9, 3, 7});
  CHECK(random_split(map(Integers{}, [](Sample sample, data::Random&) { return sample; }), {0.5, 0.5}, 1)[1]
            .size() == 5);
  CHECK(split_indices(0, std::vector<std::int64_t>{0}, 1)[0].empty());
  const std::vector<std::int64_t> wanted{5, 5};
  CHECK(random_split(Integers{}, wanted, 42)[0].size() == 5);
}

TEST_CASE("a split that does not add up is refused with both numbers") {
  CHECK_THROWS_WITH(random_split(Integers{}, {3, 6}, 0),
                    Catch::Contains("10 samples") && Catch::Contains("3 + 6"));
  CHECK_THROWS_WITH(random_split(Integers{}, {0.5, 0.4}, 0), Catch::Contains("add up to 0.9"));
  for (const auto& lengths : std::vector<std::vector<std::int64_t>>{
           {}, {11}, {12, -2}, {std::numeric_limits<std::int64_t>::max(), 10}}) {
    CHECK_THROWS_AS(split_indices(10, lengths, 0), BadConfig);
  }
  for (const auto& fractions : std::vector<std::vector<double>>{{}, {1.5, -0.5}, {std::nan(""), 1}})
    CHECK_THROWS_AS(split_indices(10, fractions, 0), BadConfig);
}

TEST_CASE("a dataset without a validation set says so, and how to hold samples back") {
  CHECK_THROWS_WITH(refuse_validation(Split::kValidation, "CIFAR-10"),
                    Catch::Contains("CIFAR-10 has no validation set") && Catch::Contains("random_split"));
  CHECK_NOTHROW(refuse_validation(Split::kTest, "CIFAR-10"));
  CHECK(std::string(split_name(Split::kValidation)) == "validation");
  // Rendered digits have one, of other digits than the test set's.
  const Digits test(Split::kTest);
  const Digits validation(Split::kValidation);
  Digits::Image a{};
  Digits::Image b{};
  test.render(0, a);
  validation.render(0, b);
  CHECK(a != b);
}
