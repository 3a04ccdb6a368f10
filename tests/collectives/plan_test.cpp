/// The plan of an operation: pure, so that every rank's view of every round can be laid side by side.

#include "collectives/native/plan.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "collectives/native/region.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/every_op.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

Plan plan_of(OpKind kind, DType dtype, std::size_t count, int root, int ranks,
             Algorithm algorithm = Algorithm::kExchange) {
  return {{.kind = kind, .dtype = dtype, .peer = root, .count = count}, {.ranks = ranks}, algorithm};
}

Choice choice_of(OpKind kind, std::size_t count, int ranks, int hosts = 1) {
  const Shape shape{.ranks = ranks, .hosts = hosts, .members = static_cast<std::size_t>(ranks / hosts)};
  return choose_algorithm({.kind = kind, .dtype = DType::kFloat32, .count = count}, shape);
}

}  // namespace

TEST_CASE("rounds cover every element once, in order, and a part fits the stage") {
  SeededRandom random(3);
  for (int i = 0; i < 2000; ++i) {
    const auto kind = kCollectives[random.below(std::size(kCollectives))];
    const auto dtype = static_cast<DType>(random.below(10));
    const int ranks = 1 + static_cast<int>(random.below(random.below(20) == 0 ? 30000 : 9));
    std::size_t count = random.below(4) == 0 ? random.below(3) : random.below(2000);
    if (kind == OpKind::kBarrier) count = 0;
    const Plan plan = plan_of(kind, dtype, count, 0, ranks);
    CAPTURE(static_cast<int>(kind), static_cast<int>(dtype), ranks, count);
    std::size_t at = 0;
    for (std::uint32_t round = 0; round < plan.rounds(); ++round) {
      const Slice part = plan.part(round);
      REQUIRE(part.begin == at);
      REQUIRE((part.size() != 0 || count == 0));
      REQUIRE(part.size() * element_size(dtype) <= kChunkBytes);
      at = part.end;
    }
    REQUIRE(at == count);
  }
}

TEST_CASE("what the others read of a rank lies in its stage without overlapping") {
  SeededRandom random(4);
  for (int i = 0; i < 2000; ++i) {
    const auto kind = kCollectives[random.below(std::size(kCollectives))];
    const auto dtype = static_cast<DType>(random.below(10));
    const int ranks = 1 + static_cast<int>(random.below(9));
    const int root = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
    const bool one_shot = random.below(2) == 0;
    const Plan plan = plan_of(kind, dtype, random.below(300000), root, ranks,
                              one_shot ? Algorithm::kOneShot : Algorithm::kExchange);
    const std::size_t element = element_size(dtype);
    for (const std::uint32_t round : {std::uint32_t{0}, static_cast<std::uint32_t>(plan.rounds() - 1)}) {
      for (int from = 0; from < ranks; ++from) {
        std::vector<Slice> staged;
        for (int to = 0; to < ranks; ++to) {
          const Slice read = plan.reads(round, from, to);
          REQUIRE(read.end <= plan.input_count(from));
          if (read.size() == 0 || to == from) continue;
          const std::size_t at = plan.staged(round, from, to);
          REQUIRE((at + read.size()) * element <= kChunkBytes);
          staged.push_back({at, at + read.size()});
          if (plan.reads_alike()) REQUIRE((at == 0 && read.size() == plan.part(round).size()));
        }
        if (plan.reads_alike()) continue;
        std::sort(staged.begin(), staged.end(), [](auto a, auto b) { return a.begin < b.begin; });
        for (std::size_t s = 1; s < staged.size(); ++s) REQUIRE(staged[s - 1].end <= staged[s].begin);
      }
    }
  }
}

TEST_CASE("sums go back to exactly those who get them, and every slice has one owner") {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int root = 0; root < ranks; ++root) {
      const std::size_t count = 70001;
      const Plan all = plan_of(OpKind::kAllReduce, DType::kFloat32, count, 0, ranks);
      const Plan one = plan_of(OpKind::kReduce, DType::kFloat32, count, root, ranks);
      for (std::uint32_t round = 0; round < all.rounds(); ++round) {
        std::size_t at = all.part(round).begin;
        for (int owner = 0; owner < ranks; ++owner) {
          const Slice slice = all.results(round, owner, root);
          REQUIRE(slice.begin == at);
          at = slice.end;
          for (int to = 0; to < ranks; ++to) {
            REQUIRE(all.results(round, owner, to).size() == slice.size());
            REQUIRE(one.results(round, owner, to).size() == (to == root ? slice.size() : 0));
            REQUIRE(all.reads(round, to, owner).begin == slice.begin);
          }
        }
        REQUIRE(at == all.part(round).end);
      }
    }
  }
}

TEST_CASE("one-shot, whoever gets a sum reads all of every input, and nothing goes back") {
  const Plan all = plan_of(OpKind::kAllReduce, DType::kFloat32, 1000, 0, 4, Algorithm::kOneShot);
  const Plan one = plan_of(OpKind::kReduce, DType::kFloat32, 1000, 2, 4, Algorithm::kOneShot);
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      CHECK(all.reads(0, from, to).size() == 1000);
      CHECK(one.reads(0, from, to).size() == (to == 2 ? 1000 : 0));
      CHECK(all.results(0, from, to).size() + one.results(0, from, to).size() == 0);
    }
  }
  CHECK((all.sums() && one.sums() && !all.answers() && !one.answers()));
}

TEST_CASE("small operations are one-shot, large ones exchange, and the choice grows with the meeting") {
  for (const OpKind kind : kCollectives) {
    CAPTURE(static_cast<int>(kind));
    for (const int ranks : {2, 3, 4, 8}) {
      CHECK(choice_of(kind, 1, ranks).algorithm == Algorithm::kOneShot);
      if (kind == OpKind::kBarrier) continue;
      CHECK(choice_of(kind, 1 << 20, ranks).algorithm == Algorithm::kExchange);
      CHECK(choice_of(kind, std::size_t{1} << 40, ranks, ranks).algorithm == Algorithm::kExchange);
      // Once it exchanges it does so for everything larger; and never later on one machine than on many.
      bool exchanged = false;
      for (std::size_t count = 1; count < (1 << 20); count *= 2) {
        const bool exchanges = choice_of(kind, count, ranks).algorithm == Algorithm::kExchange;
        CHECK((exchanges || !exchanged));
        exchanged = exchanges;
        if (!exchanges && count * sizeof(float) * static_cast<std::size_t>(ranks) <= 32768) {
          CHECK(choice_of(kind, count, ranks, ranks).algorithm == Algorithm::kOneShot);
        }
      }
    }
  }
  CHECK(choose_algorithm({.kind = OpKind::kAllReduceTree, .count = 1}, {.ranks = 2}).algorithm ==
        Algorithm::kExchange);
}

TEST_CASE("all_reduces that a batch made one cost what they have together") {
  // Was: the largest of them counted, so 100 small ones went one-shot, and all added up 250 KiB in whole.
  Op batch{.kind = OpKind::kAllReduce, .count = 64'000};
  batch.counts.assign(100, 640);
  CHECK(choose_algorithm(batch, {.ranks = 2}).algorithm == Algorithm::kExchange);
  batch.counts.assign(2, 100);
  batch.count = 200;
  CHECK(choose_algorithm(batch, {.ranks = 2}).algorithm == Algorithm::kOneShot);
}

TEST_CASE("with more ranks than cores a meeting is dear, and so is what every rank does again") {
  const auto on_cores = [](OpKind kind, std::size_t count, int cores) {
    return choose_algorithm({.kind = kind, .count = count}, {.ranks = 4, .cores = cores}).algorithm;
  };
  CHECK(on_cores(OpKind::kAllGather, 4096, 4) == Algorithm::kExchange);
  CHECK(on_cores(OpKind::kAllGather, 4096, 2) == Algorithm::kOneShot);
  CHECK(on_cores(OpKind::kAllReduce, 2048, 2) == Algorithm::kOneShot);
  CHECK(on_cores(OpKind::kAllReduce, 16384, 2) == Algorithm::kExchange);
  CHECK(on_cores(OpKind::kAllGather, 65536, 1) == Algorithm::kExchange);
}
