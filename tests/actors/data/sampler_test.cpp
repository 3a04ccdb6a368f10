#include "actors/data/sampler.hpp"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "runtime/core/error.hpp"

using namespace troupe;
using namespace troupe::data;

namespace {

std::string sha256_of(const std::vector<std::int64_t>& list) {
  std::string text;
  for (const auto index : list) text += (text.empty() ? "" : ",") + std::to_string(index);
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest{};
  crypto_hash_sha256(digest.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size());
  std::array<char, crypto_hash_sha256_BYTES * 2 + 1> hex{};
  return sodium_bin2hex(hex.data(), hex.size(), digest.data(), digest.size());
}

}  // namespace

TEST_CASE("the order is PyTorch's, number for number") {
  std::ifstream golden(TROUPE_SAMPLER_GOLDEN);
  REQUIRE(golden.good());
  int lines = 0;
  for (std::string line; std::getline(golden, line);) {
    if (line.empty() || line[0] == '#') continue;
    CAPTURE(line);
    ++lines;
    std::istringstream head(line.substr(0, line.find(':')));
    std::istringstream tail(line.substr(line.find(':') + 1));
    std::string kind;
    SamplerOptions options;
    head >> kind >> options.dataset_size;
    if (kind == "hash") {
      std::string expected;
      tail >> expected;
      head >> options.seed;
      CHECK(sha256_of(randperm(options.dataset_size, options.seed)) == expected);
      continue;
    }
    std::vector<std::int64_t> expected;
    for (std::int64_t index = 0; tail >> index;) expected.push_back(index);
    if (kind == "randperm") {
      head >> options.seed;
      CHECK(randperm(options.dataset_size, options.seed) == expected);
    } else {
      REQUIRE(kind == "sampler");
      int rank = 0;
      std::uint64_t epoch = 0;
      head >> options.logical_ranks >> rank >> options.seed >> epoch >> options.sampling.shuffle >>
          options.sampling.drop_last;
      CHECK(distributed_indices(options, epoch, rank) == expected);
    }
  }
  CHECK(lines > 100);
}

TEST_CASE("the golden of the design page") {
  const SamplerOptions options{.dataset_size = 11, .logical_ranks = 4};
  const std::vector<std::vector<std::int64_t>> expected{{10, 5, 9}, {0, 8, 7}, {4, 2, 6}, {3, 1, 10}};
  for (int rank = 0; rank < 4; ++rank) CHECK(distributed_indices(options, 0, rank) == expected[rank]);
}

TEST_CASE("the micro-batches of a leaf are its rank's list, cut") {
  for (const bool drop_last : {false, true}) {
    for (const bool drop_short : {false, true}) {
      const SamplerOptions options{.dataset_size = 103,
                                   .logical_ranks = 4,
                                   .batch = 7,
                                   .seed = 9,
                                   .sampling = {.drop_last = drop_last, .drop_short_batch = drop_short}};
      LeafSampler sampler(options);
      CHECK(sampler.samples_per_leaf() == (drop_last ? 25 : 26));
      CHECK(sampler.steps_per_epoch() == (drop_short ? 3 : 4));
      for (const std::uint64_t epoch : {0U, 1U, 5U, 1U, 2U}) {
        for (int leaf = 0; leaf < 4; ++leaf) {
          std::vector<std::int64_t> joined;
          for (std::int64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
            const auto batch = sampler.indices(epoch, step, leaf);
            CHECK(static_cast<std::int64_t>(batch.size()) == sampler.batch_size(step));
            joined.insert(joined.end(), batch.begin(), batch.end());
          }
          auto expected = distributed_indices(options, epoch, leaf);
          if (drop_short) expected.resize(21);
          CHECK(joined == expected);
        }
      }
    }
  }
}

TEST_CASE("options that cannot work are refused in words") {
  const auto refusal = [](SamplerOptions options) {
    try {
      const LeafSampler sampler(options);
    } catch (const BadConfig& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal({.dataset_size = 0}) ==
        "cannot sample an empty dataset: it has 0 samples (check the data folder)");
  CHECK(refusal({.dataset_size = 10, .logical_ranks = 0}) == "logical ranks must be at least 1: got 0");
  CHECK(refusal({.dataset_size = 10, .batch = 0}) == "batch must be at least 1: got 0");
  CHECK(refusal({.dataset_size = 10, .logical_ranks = 2, .batch = 6}) ==
        "batch is larger than the dataset: 2 logical ranks of 6 samples each need more than the 10 there are "
        "(use a "
        "smaller batch or fewer logical ranks)");
  CHECK_FALSE(refusal({.dataset_size = 10, .batch = INT64_MAX}).empty());
  CHECK_FALSE(refusal({.dataset_size = INT64_MAX}).empty());
  CHECK(refusal({.dataset_size = 10, .logical_ranks = 2, .batch = 5}).empty());
}

TEST_CASE("the index hash tells lists apart and never changes") {
  const std::vector<std::int64_t> list{3, 1, 2};
  CHECK(index_hash(list) == index_hash(std::vector<std::int64_t>{3, 1, 2}));
  std::set<std::uint64_t> hashes{index_hash(list),
                                 index_hash({}),
                                 index_hash(std::vector<std::int64_t>{0}),
                                 index_hash(std::vector<std::int64_t>{0, 0}),
                                 index_hash(std::vector<std::int64_t>{1, 3, 2}),
                                 index_hash(std::vector<std::int64_t>{3, 1})};
  CHECK(hashes.size() == 6);
  CHECK(index_hash(list) == 0x8ef285eef6860650ULL);  // golden: ledgers outlive a build
}

TEST_CASE("evaluation covers every sample exactly once") {
  for (const std::int64_t size : {0, 1, 3, 10, 10'000}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::int64_t at = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto part = eval_interval(size, ranks, rank);
        CHECK(part.begin == at);
        CHECK(part.size() >= size / ranks);
        CHECK(part.size() <= size / ranks + 1);
        at = part.end;
      }
      CHECK(at == size);
    }
  }
}

TEST_CASE("a sequential sampler deals the order of the dataset; a weighted one draws by weight") {
  LeafSampler in_order({.dataset_size = 10, .logical_ranks = 2, .batch = 3, .sampling = sequential()});
  CHECK(in_order.indices(5, 0, 0) == std::vector<std::int64_t>{0, 2, 4});
  CHECK(in_order.indices(5, 1, 1) == std::vector<std::int64_t>{7, 9});

  const SamplerOptions options{
      .dataset_size = 4, .logical_ranks = 2, .batch = 100, .sampling = weighted({0, 1, 3, 0}, 4000)};
  LeafSampler drawn(options);
  CHECK(drawn.samples_per_leaf() == 2000);
  CHECK(drawn.steps_per_epoch() == 20);
  std::map<std::int64_t, int> often;
  for (std::int64_t step = 0; step < 20; ++step) {
    for (const int leaf : {0, 1}) {
      for (const auto index : drawn.indices(0, step, leaf)) ++often[index];
    }
  }
  CHECK(often.size() == 2);
  CHECK(std::abs(often[2] - 3000) < 150);
  CHECK(drawn.indices(0, 3, 1) == LeafSampler(options).indices(0, 3, 1));
  CHECK(drawn.indices(0, 3, 1) != drawn.indices(1, 3, 1));
}

TEST_CASE("weights that no sample can be drawn by are refused, by number") {
  const auto why = [](std::vector<double> weights, std::int64_t draws = 0) {
    try {
      const LeafSampler sampler(
          {.dataset_size = 3, .batch = 1, .sampling = weighted(std::move(weights), draws)});
    } catch (const BadConfig& error) {
      return error.info().why;
    }
    return std::string("it is fine");
  };
  CHECK(why({1, 2, 3}) == "it is fine");
  CHECK(why({1, 2}) == "there are 2 weights for 3 samples");
  CHECK(why({1, -2, 3}).find("sample 1") != std::string::npos);
  CHECK(why({1, 2, std::nan("")}).find("sample 2 is nan") != std::string::npos);
  CHECK(why({0, 0, 0}).find("their sum") != std::string::npos);
  CHECK(why({1, 2, 3}, -1).find("-1 draws") != std::string::npos);
}

TEST_CASE("whatever changes the samples of a job changes its sampling's hash") {
  const std::vector<Sampling> all{{},
                                  sequential(),
                                  {.drop_last = true},
                                  {.drop_short_batch = true},
                                  weighted({1, 2}),
                                  weighted({2, 1}),
                                  weighted({1, 2}, 5)};
  std::set<std::uint64_t> hashes;
  for (const auto& sampling : all) hashes.insert(sampling_hash(sampling));
  CHECK(hashes.size() == all.size());
}
