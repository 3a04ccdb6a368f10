// What ranks read in a bucket's header, after sums and means in each dtype.
#include "actors/ddp/step_header.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <vector>

namespace troupe::train::testing {
namespace {

using collectives::DType;

/// The headers of `counts`, added up in T and divided by the number of ranks, as an all_reduce does.
template <class T>
std::vector<ForwardCount> read_of(DType dtype, const std::vector<ForwardCount>& counts,
                                  const ForwardCount& mine, bool mean) {
  const int ranks = static_cast<int>(counts.size());
  const std::size_t elements = StepHeader::elements(dtype, ranks);
  std::vector<T> sum(elements, static_cast<T>(0.0F));
  std::vector<T> one(elements);
  for (int rank = 0; rank < ranks; ++rank) {
    std::memset(static_cast<void*>(one.data()), 0xff, elements * sizeof(T));  // of the step before: NaN
    StepHeader(reinterpret_cast<std::byte*>(one.data()), dtype, rank, ranks)
        .write(counts[static_cast<std::size_t>(rank)]);
    for (std::size_t i = 0; i < elements; ++i) sum[i] = static_cast<T>(sum[i] + one[i]);
  }
  for (T& value : sum) {
    if (mean) value = static_cast<T>(static_cast<float>(value) / static_cast<float>(ranks));
  }
  return StepHeader(reinterpret_cast<std::byte*>(sum.data()), dtype, 0, ranks).read(mine, mean ? ranks : 1);
}

TEST_CASE("a header tells every rank's counts in every dtype, also as means over many ranks") {
  const bool mean = GENERATE(true, false);
  for (const std::size_t ranks : {2, 3, 7, 64, 1000}) {
    for (std::uint64_t begun = 1; begun < 300; begun += 1 + ranks / 50) {  // the work grows as ranks^2
      const std::uint64_t in_no_sync = begun / 2;
      std::vector<ForwardCount> counts(ranks, {begun, in_no_sync});
      counts.back() = {begun + 1, in_no_sync + 1};
      if (ranks > 3) counts[ranks / 2] = {};  // a shadow
      const ForwardCount& mine = counts.front();
      const bool told = read_of<double>(DType::kFloat64, counts, mine, mean) == counts &&
                        read_of<float>(DType::kFloat32, counts, mine, mean) == counts &&
                        read_of<c10::Half>(DType::kFloat16, counts, mine, mean) == counts &&
                        read_of<c10::BFloat16>(DType::kBFloat16, counts, counts.back(), mean) == counts;
      if (told) continue;
      CAPTURE(ranks, begun);
      FAIL("a count is another");
    }
  }
}

TEST_CASE("counts up to 7,200 from one's own are told, and those farther away told apart") {
  // One element had the number modulo 120: 120 forwards more were none.
  const std::vector<ForwardCount> counts{{20000, 14400}, {20120, 14400}, {20000, 14280},
                                         {27199, 7201},  {12801, 21599}, {20000 - 14399, 14400},
                                         {14400, 0}};
  const auto read = read_of<float>(DType::kFloat32, counts, counts[0], true);
  CHECK(std::vector(read.begin(), read.begin() + 5) == std::vector(counts.begin(), counts.begin() + 5));
  CHECK(read[5] != counts[0]);
  // From a count that is small itself.
  CHECK(read_of<float>(DType::kFloat32, counts, {5, 0}, true)[6] == counts[6]);
}

TEST_CASE("ranks that are a step apart are said, and a shadow is in none") {
  const auto said = [](const std::vector<ForwardCount>& counts) { return steps_apart(counts); };
  CHECK(said({{4}, {4}, {4}}).empty());
  CHECK(said({{}, {4}, {}, {4}}).empty());
  CHECK(said({{}, {}}).empty());
  CHECK(said({{5}, {4}, {5}, {}, {5}}) == "rank 1 in forward 4, rank 0 and 2 more in forward 5");
  CHECK(said({{5, 3}, {4, 3}, {}}) == "rank 1 in forward 4, rank 0 in forward 5");
  CHECK(said({{5, 3}, {5, 4}, {5, 3}}) ==
        "rank 0 and 1 more in forward 5 (3 in no_sync), rank 1 in forward 5 (4 in no_sync)");
}

}  // namespace
}  // namespace troupe::train::testing
