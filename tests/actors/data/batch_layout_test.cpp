#include "actors/data/batch_layout.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <new>

#include "actors/data/digits.hpp"
#include "actors/data/sampler.hpp"
#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::data;

namespace {

struct AlignedDelete {
  void operator()(std::byte* at) const { ::operator delete[](at, std::align_val_t{64}); }
};

/// Memory as the arena gives it.
struct Arena {
  explicit Arena(std::size_t bytes)
      : at(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64}))), size(bytes) {
    std::memset(at.get(), 0xee, bytes);
  }
  std::span<std::byte> span() const { return {at.get(), size}; }
  std::unique_ptr<std::byte, AlignedDelete> at;
  std::size_t size;
};

}  // namespace

TEST_CASE("a batch reads as it was filled") {
  const Digits dataset(Split::kTrain, {.size = 50});
  for (const std::size_t count : {0U, 1U, 3U, 25U}) {
    std::vector<std::int64_t> indices;
    for (std::size_t i = 0; i < count; ++i) indices.push_back(static_cast<std::int64_t>(i * 17 % 50));
    const auto at = batch_offsets(static_cast<std::int64_t>(count), dataset.shape());
    CHECK(at.inputs == 64);
    CHECK(at.targets % 64 == 0);
    CHECK(at.total % 64 == 0);
    const Arena arena(at.total + 64);
    fill_batch(arena.span().first(at.total), {3, 700, 2}, dataset, indices);
    for (const auto beyond : arena.span().subspan(at.total)) CHECK(beyond == std::byte{0xee});

    const auto view = view_batch(arena.span());
    REQUIRE(view.ok());
    CHECK(view->key() == BatchKey{3, 700, 2});
    CHECK(view->header.count == count);
    CHECK(view->header.index_hash == index_hash(indices));
    REQUIRE(view->targets.size() == count);
    REQUIRE(view->inputs.size() == count * 784);
    std::vector<float> expected(784);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(view->targets[i] == dataset.get(indices[i], expected));
      CHECK(std::equal(expected.begin(), expected.end(),
                       view->inputs.begin() + static_cast<std::ptrdiff_t>(i * 784)));
    }
  }
}

TEST_CASE("memory that holds no whole batch is refused") {
  const Digits dataset(Split::kTrain, {.size = 4});
  const std::vector<std::int64_t> indices{0, 1, 2};
  const auto at = batch_offsets(3, dataset.shape());
  const Arena arena(at.total + 64);
  fill_batch(arena.span(), {}, dataset, indices);
  CHECK(view_batch(arena.span().first(at.total)).ok());
  CHECK_FALSE(view_batch(arena.span().first(at.total - 1)).ok());
  CHECK_FALSE(view_batch(arena.span().first(63)).ok());
  CHECK_FALSE(view_batch({}).ok());
  CHECK(view_batch(arena.span().subspan(8)).error().why == "it is not aligned to 64 bytes");
  CHECK(view_batch(arena.span().subspan(64)).error().why == "it does not begin with a batch header");
}

TEST_CASE("no header makes a view leave its memory") {
  const std::uint64_t seed = 4;
  CAPTURE(seed);
  SeededRandom random(seed);
  const Digits dataset(Split::kTrain, {.size = 4});
  const std::vector<std::int64_t> indices{0, 1};
  const auto at = batch_offsets(2, dataset.shape());
  const Arena arena(at.total);
  fill_batch(arena.span(), {}, dataset, indices);
  const std::vector<std::byte> good(arena.span().begin(), arena.span().begin() + 64);
  int accepted = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::memcpy(arena.at.get(), good.data(), 64);
    for (auto edits = random.below(4); edits > 0; --edits) {
      arena.at.get()[8 + random.below(56)] = static_cast<std::byte>(random.next());
    }
    const auto view = view_batch(arena.span());
    if (!view.ok()) continue;
    ++accepted;
    const auto* end = arena.at.get() + arena.size;
    CHECK(reinterpret_cast<const std::byte*>(view->inputs.data() + view->inputs.size()) <= end);
    CHECK(reinterpret_cast<const std::byte*>(view->targets.data() + view->targets.size()) <= end);
  }
  CHECK(accepted > 1000);
}
