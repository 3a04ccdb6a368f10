#include "actors/data/stream.hpp"

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "actors/data/transforms.hpp"
#include "runtime/core/error.hpp"

using namespace troupe;
using namespace troupe::data;

namespace {

/// Numbers that lie at odd places, and how many were read.
struct Numbers {
  std::int64_t count = 0;
  std::shared_ptr<std::atomic<int>> reads = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<std::int64_t>> end = std::make_shared<std::atomic<std::int64_t>>(count);

  static std::uint64_t place(std::int64_t n) { return static_cast<std::uint64_t>(n * (n + 7)); }
  bool read(std::uint64_t& cursor, Sample* sample) const {
    std::int64_t n = 0;
    while (place(n) < cursor) ++n;
    REQUIRE(place(n) == cursor);
    if (n >= *end) return false;
    ++*reads;
    if (sample != nullptr) sample->set("input", n);
    cursor = place(n + 1);
    return true;
  }
};

std::int64_t number(const Dataset& dataset, std::int64_t index) {
  data::Random random({1, 0}, index);
  return dataset.get(index, random)["input"].values<std::int64_t>()[0];
}

std::string text(const Dataset& dataset, std::int64_t index) {
  data::Random random({1, 0}, index);
  const Sample sample = dataset.get(index, random);
  const auto bytes = sample["text"].values<std::uint8_t>();
  return {bytes.begin(), bytes.end()};
}

std::string write_file(const std::string& contents) {
  static int number = 0;
  const auto path = std::filesystem::temp_directory_path() /
                    ("troupe-lines-" + std::to_string(::getpid()) + "-" + std::to_string(++number));
  std::ofstream(path, std::ios::binary) << contents;
  return path.string();
}

}  // namespace

TEST_CASE("a stream's samples are found by their index, in any order") {
  const Indexed dataset = indexed(Numbers{100}, {.every = 7});
  CHECK(dataset.size() == 100);
  for (const std::int64_t index : {0, 99, 50, 51, 52, 7, 6, 8, 14, 13, 99, 0})
    CHECK(number(dataset, index) == index);
  CHECK(indexed(Numbers{100}, {.most_samples = 30}).size() == 30);
}

TEST_CASE("a stream that is read in order is read once, also by several readers in turns") {
  const Numbers numbers{100};
  const Indexed dataset = indexed(numbers, {.every = 10});
  *numbers.reads = 0;
  for (std::int64_t i = 0; i < 50; ++i) {
    CHECK(number(dataset, i) == i);
    CHECK(number(dataset, 50 + i) == 50 + i);
  }
  CHECK(*numbers.reads == 100);
}

TEST_CASE("threads may read a stream at once") {
  const Indexed dataset = indexed(Numbers{200}, {.every = 16});
  std::vector<std::jthread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = t; i < 200; i += 3) wrong += number(dataset, i) != i;
    });
  }
  threads.clear();
  CHECK(wrong == 0);
}

TEST_CASE("a stream that is empty, stands still or became shorter is an error") {
  CHECK_THROWS_AS(indexed(Numbers{0}), BadConfig);
  CHECK_THROWS_AS(indexed(Numbers{10}, {.every = 0}), BadConfig);
  struct Still {
    bool read(std::uint64_t&, Sample*) const { return true; }
  };
  CHECK_THROWS_WITH(indexed(Still{}), Catch::Contains("stands still behind sample 0"));
  const Numbers numbers{10};
  const Indexed dataset = indexed(numbers);
  *numbers.end = 5;
  CHECK(number(dataset, 4) == 4);
  CHECK_THROWS_WITH(number(dataset, 9), Catch::Contains("ends at sample 5") && Catch::Contains("had 10"));
}

TEST_CASE("the lines of a file, with an empty one, long ones and none at the end") {
  const std::string longer(10'000, 'x');
  const auto path = write_file("first\n\n" + longer + "\nlast");
  const Indexed lines = indexed(Lines(path), {.every = 2});
  REQUIRE(lines.size() == 4);
  CHECK(text(lines, 3) == "last");
  CHECK(text(lines, 0) == "first");
  CHECK(text(lines, 1).empty());
  CHECK(text(lines, 2) == longer);
  CHECK(indexed(Lines(write_file("one\ntwo\n"))).size() == 2);
  const Mapped lengths = map(indexed(Lines(path)), [](const Sample& line, data::Random&) -> Sample {
    return {{"input", line["text"].elements()}};
  });
  CHECK(number(lengths, 2) == 10'000);
}

TEST_CASE("a file of lines that is missing, a folder or has no end is an error that names it") {
  CHECK_THROWS_WITH(Lines("/nowhere/lines"), Catch::Contains("/nowhere/lines"));
  CHECK_THROWS_AS(indexed(Lines(std::filesystem::temp_directory_path().string())), Error);
  const auto path = write_file(std::string((16 << 20) + 2, 'x'));
  CHECK_THROWS_WITH(indexed(Lines(path)), Catch::Contains("more than 16 MiB"));
}
