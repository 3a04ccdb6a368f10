// What ranks read in a bucket's header, after sums and means in each dtype.
#include "actors/ddp/step_header.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

namespace troupe::train::testing {
namespace {

using collectives::DType;

/// The headers of `numbers`, added up in T and divided by the number of ranks, as an all_reduce does.
template <class T>
std::vector<ForwardNumber> read_of(DType dtype, const std::vector<ForwardNumber>& numbers, ForwardNumber mine,
                                   bool mean) {
  const int ranks = static_cast<int>(numbers.size());
  const std::size_t elements = StepHeader::elements(dtype, ranks);
  std::vector<T> sum(elements, static_cast<T>(0.0F));
  std::vector<T> one(elements);
  for (int rank = 0; rank < ranks; ++rank) {
    std::memset(static_cast<void*>(one.data()), 0xff, elements * sizeof(T));  // of the step before: NaN
    StepHeader(reinterpret_cast<std::byte*>(one.data()), dtype, rank, ranks)
        .write(numbers[static_cast<std::size_t>(rank)]);
    for (std::size_t i = 0; i < elements; ++i) sum[i] = static_cast<T>(sum[i] + one[i]);
  }
  for (T& value : sum) {
    if (mean) value = static_cast<T>(static_cast<float>(value) / static_cast<float>(ranks));
  }
  return StepHeader(reinterpret_cast<std::byte*>(sum.data()), dtype, 0, ranks).read(mine, mean ? ranks : 1);
}

TEST_CASE("a header tells every rank's forward in every dtype, also as a mean over many ranks") {
  const bool mean = GENERATE(true, false);
  for (const std::size_t ranks : {2, 3, 7, 64, 1000}) {
    for (ForwardNumber first = 1; first < 300; ++first) {
      std::vector<ForwardNumber> numbers(ranks, first);
      numbers.back() = first + 1;
      numbers[ranks / 2] = ranks > 3 ? 0 : first;  // a shadow
      const bool told = read_of<double>(DType::kFloat64, numbers, first, mean) == numbers &&
                        read_of<float>(DType::kFloat32, numbers, first, mean) == numbers &&
                        read_of<c10::Half>(DType::kFloat16, numbers, first, mean) == numbers &&
                        read_of<c10::BFloat16>(DType::kBFloat16, numbers, first + 1, mean) == numbers;
      if (told) continue;
      CAPTURE(ranks, first);
      FAIL("a number is another");
    }
  }
}

TEST_CASE("numbers far from one's own are told apart, if not named") {
  const auto read = read_of<float>(DType::kFloat32, {1000, 1000, 1059, 941, 3}, 1000, true);
  CHECK(std::vector(read.begin(), read.begin() + 4) == std::vector<ForwardNumber>{1000, 1000, 1059, 941});
  CHECK(read[4] != 1000);
}

TEST_CASE("ranks that are a step apart are said, and a shadow is in none") {
  const auto said = [](std::vector<ForwardNumber> numbers) { return steps_apart(numbers); };
  CHECK(said({4, 4, 4}).empty());
  CHECK(said({0, 4, 0, 4}).empty());
  CHECK(said({0, 0}).empty());
  CHECK(said({5, 4, 5, 0, 5}) == "rank 1 in forward 4, rank 0 and 2 more in forward 5");
}

}  // namespace
}  // namespace troupe::train::testing
