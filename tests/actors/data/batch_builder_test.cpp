// What a user writes, and what becomes of it in a loader.
#include "actors/data/batch_builder.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>

#include "actors/data/digits.hpp"
#include "actors/data/sampler.hpp"
#include "actors/data/subset.hpp"
#include "tests/actors/data/batch_memory.hpp"

using namespace troupe;
using namespace troupe::data;
using namespace troupe::data::testing;

namespace {

/// A user's dataset without LibTorch and without a base class: samples of a vector, a number and a draw.
struct Squares {
  std::int64_t size() const { return 100; }
  Sample get(std::int64_t index, data::Random& random) const {
    const auto x = static_cast<float>(index);
    return {{"input", std::vector<float>{x, x * x}}, {"target", index % 2}, {"noise", random.uniform()}};
  }
};

/// Tokens of variable length, padded by collate() to the longest; the lengths are a field.
struct Sentences {
  std::int64_t size() const { return 50; }
  Sample get(std::int64_t index, data::Random&) const {
    return {{"input", std::vector<std::int64_t>(static_cast<std::size_t>(index % 7 + 1), index)},
            {"target", index}};
  }
  Sample collate(std::vector<Sample> samples) const {
    std::int64_t longest = 0;
    for (const auto& sample : samples) longest = std::max(longest, sample["input"].elements());
    const auto count = static_cast<std::int64_t>(samples.size());
    Tensor tokens(DType::kInt64, {count, longest});
    std::vector<std::int64_t> lengths;
    std::vector<std::int64_t> targets;
    auto row = tokens.fill<std::int64_t>();
    for (const auto& sample : samples) {
      const auto words = sample["input"].values<std::int64_t>();
      std::copy(words.begin(), words.end(), row.begin());
      row = row.subspan(static_cast<std::size_t>(longest));
      lengths.push_back(sample["input"].elements());
      targets.push_back(sample["target"].values<std::int64_t>()[0]);
    }
    return {{"input", tokens}, {"target", targets}, {"lengths", lengths}};
  }
};

/// A dataset that does what a test says.
struct Scripted {
  std::function<Sample(std::int64_t)> what;
  std::int64_t size() const { return 10; }
  Sample get(std::int64_t index, data::Random&) const { return what(index); }
};

struct EmptyCollate : Sentences {
  Sample collate(std::vector<Sample>) const { return {{"input", Tensor(DType::kFloat32, {0, 3})}}; }
};
struct BadCollate : Sentences {
  Sample collate(std::vector<Sample>) const { throw std::out_of_range("no such word"); }
};

const std::vector<std::int64_t> kIndices{3, 8, 5, 13};

struct Built {
  Memory memory;
  BatchView view;
};

Built build(const Dataset& dataset, const std::vector<std::int64_t>& indices = kIndices, RandomKey key = {}) {
  BatchBuilder builder(dataset, indices, key);
  Memory memory(builder.total());
  builder.write(memory.span(), {1, 2, 3});
  auto view = view_batch(memory.span()).value();
  return {std::move(memory), std::move(view)};
}

template <class T>
std::vector<T> values(const BatchView& view, std::string_view name) {
  const FieldView* field = view.find(name);
  REQUIRE(field != nullptr);
  REQUIRE(field->dtype == collectives::dtype_of<T>());
  std::vector<T> all(field->bytes.size() / sizeof(T));
  std::memcpy(all.data(), field->bytes.data(), field->bytes.size());
  return all;
}

std::string failure_of(std::function<Sample(std::int64_t)> what) {
  try {
    build(*share(Scripted{std::move(what)}), {3, 8, 5});
  } catch (const Error& error) {
    return error.what();
  }
  return "it did not fail";
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return true;
}

}  // namespace

namespace {

std::uint64_t generator_state = 0;  ///< stands for LibTorch's default generator

/// Draws from it, straight into the batch.
struct Drawing : FixedDataset {
  std::int64_t size() const override { return 20; }
  std::vector<FieldSpec> fields() const override { return {{"input", DType::kInt64, {}}}; }
  void write(std::int64_t, data::Random&, std::span<const std::span<std::byte>> places) const override {
    const std::uint64_t drawn = ++generator_state;
    std::memcpy(places[0].data(), &drawn, sizeof drawn);
  }
};
struct Collating : Drawing {
  Sample collate(std::vector<Sample> samples) const { return samples.front(); }
};
struct Twice : Drawing {
  Sample collate(int) const { return {}; }
  Sample collate(double) const { return {}; }
};

}  // namespace

// It was not: a write() that drew from LibTorch's generator gave other bits with each number of loaders.
TEST_CASE("other generators are seeded before each sample that is written, too") {
  const auto drawn = [](std::vector<std::int64_t> indices) {
    BatchBuilder builder(Drawing(), indices, {7, 1},
                         {.seed = [](std::uint64_t seed) { generator_state = seed; }});
    Memory memory(builder.total());
    builder.write(memory.span(), {1, 2, 3});
    return values<std::int64_t>(view_batch(memory.span()).value(), "input");
  };
  const auto forth = drawn({3, 8});
  CHECK(forth[0] != forth[1]);
  CHECK(drawn({8, 5, 3}) == std::vector<std::int64_t>{forth[1], drawn({5})[0], forth[0]});
}

TEST_CASE("no generator is seeded for a dataset that uses none") {
  const std::vector<std::int64_t> indices{1, 2};
  for (const auto& dataset : {share(Digits(Split::kTest)), share(Subset(Digits(Split::kTest), {5, 4, 3}))}) {
    BatchBuilder builder(*dataset, indices, {7, 1},
                         {.seed = [](std::uint64_t) { FAIL_CHECK("a microsecond a sample"); }});
    Memory memory(builder.total());
    builder.write(memory.span(), {1, 2, 3});
  }
}

// A collate() of such a class was passed over in silence. Here it does not compile; one that overrides
// Dataset's does not either, as FixedDataset's is final.
static_assert(HidesCollate<Collating>);
static_assert(HidesCollate<Twice>);
static_assert(!HidesCollate<Drawing>);
static_assert(!HidesCollate<Digits>);

TEST_CASE("a struct with size and get is a dataset; its samples are stacked, field by field") {
  const auto built = build(*share(Squares{}));
  CHECK(built.view.header.count == 4);
  CHECK(built.view.header.index_hash == index_hash(kIndices));
  CHECK(built.view.find("input")->shape == Shape{4, 2});
  CHECK(values<float>(built.view, "input") == std::vector<float>{3, 9, 8, 64, 5, 25, 13, 169});
  // A number of a sample is a scalar, so the field has one dimension: an integer is int64, as in LibTorch.
  CHECK(built.view.find("target")->shape == Shape{4});
  CHECK(values<std::int64_t>(built.view, "target") == std::vector<std::int64_t>{1, 0, 1, 1});
  CHECK(values<float>(built.view, "noise").size() == 4);
}

TEST_CASE("what a sample draws is a function of seed, epoch and index") {
  const auto dataset = share(Squares{});
  const auto noise = [&](const std::vector<std::int64_t>& indices, RandomKey key) {
    return values<float>(build(*dataset, indices, key).view, "noise");
  };
  const auto once = noise({1, 2, 3}, {7, 0});
  CHECK(noise({3, 2, 1}, {7, 0}) == std::vector<float>{once[2], once[1], once[0]});
  CHECK(noise({2}, {7, 0})[0] == once[1]);
  CHECK(noise({1, 2, 3}, {7, 1}) != once);
  CHECK(noise({1, 2, 3}, {8, 0}) != once);
  CHECK(once[0] != once[1]);
}

TEST_CASE("a collate of the user's makes batches of samples of variable length") {
  const auto built = build(*share(Sentences{}));
  CHECK(built.view.header.count == 4);
  CHECK(built.view.find("input")->shape == Shape{4, 7});
  CHECK(values<std::int64_t>(built.view, "lengths") == std::vector<std::int64_t>{4, 2, 6, 7});
  CHECK(values<std::int64_t>(built.view, "input")[7] == 8);
  // The next batch is of another size.
  CHECK(build(*share(Sentences{}), {0, 7}).view.find("input")->shape == Shape{2, 1});
}

TEST_CASE("a dataset that knows its fields writes into the batch what get() returns") {
  const Digits digits(Split::kTrain, {.size = 50});
  const auto built = build(digits);
  const auto inputs = values<float>(built.view, "input");
  for (std::size_t i = 0; i < kIndices.size(); ++i) {
    data::Random random({}, kIndices[i]);
    const auto sample = digits.get(kIndices[i], random);
    const auto pixels = sample["input"].values<float>();
    CHECK(std::equal(pixels.begin(), pixels.end(), inputs.begin() + static_cast<std::ptrdiff_t>(784 * i)));
    CHECK(values<std::int64_t>(built.view, "target")[i] == sample["target"].values<std::int64_t>()[0]);
  }
  const Subset part = first_samples(digits, 20);
  CHECK(part.size() == 20);
  CHECK(values<float>(build(part).view, "input") == inputs);
}

TEST_CASE("a sample of another shape is one error that names both") {
  const auto other = [](std::int64_t odd) {
    return [odd](std::int64_t index) -> Sample {
      return {{"input", std::vector<float>(index == odd ? 5 : 4)}, {"target", 1}};
    };
  };
  const auto text = failure_of(other(5));
  has(text, "'input' of sample 5 is f32 [5], of sample 3 f32 [4]");
  has(text, "collate()");
  has(failure_of([](std::int64_t index) -> Sample {
        if (index == 8) return {{"x", 1}};
        return {{"x", 1.5}};
      }),
      "'x' of sample 8 is i64 [], of sample 3 f32 []");
  has(failure_of([](std::int64_t index) -> Sample {
        if (index == 8) return {{"x", 1}};
        return {{"x", 1}, {"y", 2}};
      }),
      "sample 8 has no field 'y', sample 3 has");
  has(failure_of([](std::int64_t index) -> Sample {
        if (index == 8) return {{"x", 1}, {"y", 2}};
        return {{"x", 1}};
      }),
      "sample 8 has a field 'y', sample 3 has not");
}

TEST_CASE("what the user's code throws fails with the sample's index and the text") {
  const auto text = failure_of([](std::int64_t index) -> Sample {
    if (index == 8) throw std::runtime_error("the tape tore\nException raised from read at tape.cpp:7");
    return {{"x", 1}};
  });
  has(text, "sample 8 could not be read: the tape tore");
  CHECK(text.find("tape.cpp") == std::string::npos);
  has(failure_of([](std::int64_t) -> Sample { throw 7; }), "sample 3 could not be read");
  has(failure_of([](std::int64_t) -> Sample { return {}; }), "no fields");
  has(failure_of([](std::int64_t) -> Sample {
        return {{"x", 1}, {"x", 2}};
      }),
      "two fields have the name 'x'");
  has(failure_of([](std::int64_t) -> Sample {
        return {{"x", Tensor(DType::kFloat32, {std::int64_t{1} << 40})}};
      }),
      "more than 4 GiB");
  CHECK_THROWS_WITH(build(*share(BadCollate{})),
                    Catch::Contains("collate() failed") && Catch::Contains("no such word"));
  CHECK_THROWS_WITH(build(*share(EmptyCollate{})), Catch::Contains("collate() made an empty batch"));
}

TEST_CASE("tensors and samples say what is wrong with their use") {
  CHECK_THROWS_WITH(Tensor(std::vector<float>{1, 2, 3}, Shape{2, 2}), Catch::Contains("4 elements, but 3"));
  CHECK_THROWS_WITH(Tensor(1).values<float>(), Catch::Contains("as f32") && Catch::Contains("i64 []"));
  const Sample sample{{"a", 1}, {"b", true}};
  CHECK_THROWS_WITH(sample["c"], Catch::Contains("'c'") && Catch::Contains("'a', 'b'"));
  CHECK(sample["b"].dtype() == DType::kBool);
  CHECK(Tensor(2.5).dtype() == DType::kFloat32);
  CHECK(Tensor(std::vector<std::uint8_t>{1, 2}).shape() == Shape{2});
}
