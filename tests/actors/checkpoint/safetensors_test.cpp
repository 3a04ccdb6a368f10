#include "actors/checkpoint/safetensors.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "runtime/core/random.hpp"
#include "tests/fuzz/mutate.hpp"

using namespace troupe;
using namespace troupe::checkpoint;

namespace {

using Bytes = std::vector<std::byte>;

/// A file of that header and `data_bytes` zeros.
Bytes file_with(const std::string& header, std::size_t data_bytes) {
  Bytes file;
  for (std::size_t i = 0; i < 8; ++i) file.push_back(static_cast<std::byte>(header.size() >> (8 * i)));
  const auto text = std::as_bytes(std::span(header));
  file.insert(file.end(), text.begin(), text.end());
  file.resize(file.size() + data_bytes);
  return file;
}

std::string why_not(const std::string& header, std::size_t data_bytes) {
  const auto decoded = read_safetensors("f", file_with(header, data_bytes));
  if (decoded) return "";
  CHECK(decoded.error().code == ErrorCode::kCorrupt);
  CHECK(decoded.error().what == "cannot use safetensors file 'f'");
  return decoded.error().why;
}

Bytes sample() {
  static const std::vector<float> weight{1, 2, 3, 4, 5, 6};
  static const std::vector<std::int64_t> steps{77};
  static const std::vector<std::uint8_t> flags{1, 0, 1};
  const std::vector<TensorView> tensors{{"flags", DType::kBool, {3}, std::as_bytes(std::span(flags))},
                                        {"b.weight", DType::kF32, {2, 3}, std::as_bytes(std::span(weight))},
                                        {"a.empty", DType::kF32, {0, 4}, {}},
                                        {"steps", DType::kI64, {}, std::as_bytes(std::span(steps))}};
  const auto layout = lay_out_safetensors(tensors, {{"format", "pt"}});
  REQUIRE(layout.ok());
  auto file = write_safetensors(*layout);
  CHECK(file.size() == layout->total_bytes);
  return file;
}

}  // namespace

TEST_CASE("a file has the layout of the specification") {
  const Bytes file = sample();
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"steps":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("a.empty":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]},)"
      R"("b.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
      R"("flags":{"dtype":"BOOL","shape":[3],"data_offsets":[32,35]}})";
  const std::size_t padded = (header.size() + 7) / 8 * 8;
  REQUIRE(file.size() == 8 + padded + 35);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  CHECK(length == padded);
  CHECK(std::memcmp(file.data() + 8, header.data(), header.size()) == 0);
}

TEST_CASE("what was written is read") {
  const Bytes file = sample();
  const auto decoded = read_safetensors("f", file);
  REQUIRE(decoded.ok());
  CHECK(decoded->metadata == Metadata{{"format", "pt"}});
  REQUIRE(decoded->tensors.size() == 4);
  const auto* weight = decoded->find("b.weight");
  REQUIRE(weight != nullptr);
  CHECK(weight->shape == std::vector<std::int64_t>{2, 3});
  float last = 0;
  std::memcpy(&last, weight->bytes.data() + 20, 4);
  CHECK(last == 6);
  CHECK(decoded->find("steps")->shape.empty());
  CHECK(decoded->find("a.empty")->bytes.empty());
  CHECK(decoded->find("none") == nullptr);
  CHECK(read_safetensors("f", file_with("{}", 0)).ok());
}

TEST_CASE("every dtype has its name and size") {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(dtype_from_name(dtype_name(dtype)) == dtype);
    CHECK(dtype_bytes(dtype) <= 8);
  }
  CHECK_FALSE(dtype_from_name("C64").has_value());
  CHECK(dtype_name(DType::kBF16) == "BF16");
  CHECK(dtype_bytes(DType::kBF16) == 2);
}

TEST_CASE("each defect of a file is named") {
  const auto tensor = [](const std::string& offsets, const std::string& shape = "[2]") {
    return R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  CHECK(why_not(R"({"a":)" + tensor("[0,8]") + "}", 8).empty());
  CHECK(read_safetensors("f", Bytes(7)).error().why == "expected at least 8 bytes, found 7");
  CHECK(read_safetensors("f", Bytes(8, std::byte{0xff})).error().why ==
        "its header of 18446744073709551615 bytes is above the limit of 16777216");
  Bytes cut = file_with("{}      ", 0);
  cut.resize(10);
  CHECK(read_safetensors("f", cut).error().why == "its header should have 8 bytes, 2 are there");
  CHECK(why_not("", 0) == "its header does not begin with '{'");
  CHECK(why_not(" {}", 0) == "its header does not begin with '{'");
  CHECK(why_not("{", 0) == "its header has no valid JSON at byte 2");
  CHECK(why_not(R"({"a":)" + tensor("[0,8]") + R"(,"a":)" + tensor("[0,8]") + "}", 8) ==
        "its header has the key 'a' twice");
  CHECK(why_not(R"({"a":)" + tensor("[0,8]", "[[2]]") + "}", 8) ==
        "its header has nesting deeper than 3 levels");
  CHECK_FALSE(why_not(R"({"a":)" + tensor("[0,8]", "[NaN]") + "}", 8).empty());
  CHECK(why_not(R"({"a":)" + tensor("[0,12]") + "}", 12) ==
        "tensor 'a' has offsets 0 to 12, its shape takes 8 bytes");
  CHECK(why_not(R"({"a":)" + tensor("[8,0]") + "}", 8) ==
        "tensor 'a' has offsets 8 to 0, its shape takes 8 bytes");
  CHECK(why_not(R"({"a":)" + tensor("[0,8]") + R"(,"b":)" + tensor("[4,12]") + "}", 12) ==
        "tensor 'b' begins at 4, inside the one before it that ends at 8");
  CHECK(why_not(R"({"a":)" + tensor("[0,8]") + R"(,"b":)" + tensor("[12,20]") + "}", 20) ==
        "tensor 'b' begins at 12, after a gap that ends at 8");
  CHECK(why_not(R"({"a":)" + tensor("[0,8]") + "}", 7) == "tensor 'a' ends at 8, the data at 7");
  CHECK(why_not(R"({"a":)" + tensor("[0,8]") + "}", 9) == "the tensors end at 8, the data at 9");
  CHECK(why_not("{}", 1) == "the tensors end at 0, the data at 1");
  CHECK(why_not(R"({"a":)" + tensor("[0,8]", "[9223372036854775807,9]") + "}", 8) ==
        "tensor 'a' has a shape whose size overflows");
  CHECK(why_not(R"({"a":)" + tensor("[0,8]", "[-2]") + "}", 8) ==
        "tensor 'a' has a shape with an extent that is no count");
  CHECK(why_not(R"({"a":)" + tensor("[0,8]", "[2.0]") + "}", 8) ==
        "tensor 'a' has a shape with an extent that is no count");
  CHECK(why_not(R"({"a":)" + tensor("[0]") + "}", 8) ==
        "tensor 'a' has data_offsets that are not two counts");
  CHECK(why_not(R"({"a":)" + tensor("[-8,0]") + "}", 8) ==
        "tensor 'a' has data_offsets that are not two counts");
  CHECK(why_not(R"({"a":{"dtype":"X9","shape":[],"data_offsets":[0,8]}})", 8) ==
        "tensor 'a' has the unknown dtype 'X9'");
  CHECK(why_not(R"({"a":{"dtype":5,"shape":[],"data_offsets":[0,8]}})", 8) ==
        "tensor 'a' has a dtype that is no string");
  CHECK(why_not(R"({"a":{"dtype":"F32","shape":[]}})", 8) ==
        "tensor 'a' has other keys than dtype, shape and data_offsets");
  CHECK(why_not(R"({"a":5})", 8) == "tensor 'a' has other keys than dtype, shape and data_offsets");
  CHECK(why_not(R"({"__metadata__":5})", 0) == "__metadata__ is no object");
  CHECK(why_not(R"({"__metadata__":{"a":5}})", 0) == "__metadata__ has a value that is no string");
}

// A trainer whose kernel let it read nothing of the memory of another one crashed here.
TEST_CASE("of a file of which too little is there the header is refused, and no byte behind it is read") {
  const Bytes file = sample();
  const std::span<const std::byte> all(file);
  const auto needed = static_cast<std::size_t>(safetensors_prefix_bytes(all.first(8)));
  REQUIRE(needed < file.size());
  CHECK(read_safetensors_header("f", {}, file.size()).error().why == "expected at least 8 bytes, found 0");
  CHECK(read_safetensors_header("f", all.first(7), file.size()).error().why ==
        "expected at least 8 bytes, found 7");
  CHECK_FALSE(read_safetensors_header("f", all.first(needed - 1), file.size()));
  const auto header = read_safetensors_header("f", all.first(needed), file.size());
  REQUIRE(header);
  CHECK(header->tensors.size() == 4);
}

TEST_CASE("tensors that cannot be written are refused") {
  const std::vector<float> data{1, 2};
  const auto bytes = std::as_bytes(std::span(data));
  const auto why = [&](std::vector<TensorView> tensors) {
    const auto layout = lay_out_safetensors(tensors);
    return layout ? "" : layout.error().message();
  };
  CHECK(why({{"a", DType::kF32, {2}, bytes}}).empty());
  CHECK(why({{"a", DType::kF32, {3}, bytes}}) ==
        "cannot write tensor 'a': its shape takes 12 bytes, it has 8");
  CHECK(why({{"a", DType::kF32, {-2}, bytes}}) ==
        "cannot write tensor 'a': its shape takes too many bytes, it has 8");
  CHECK(why({{"a", DType::kF32, {2}, bytes}, {"a", DType::kF32, {2}, bytes}}) ==
        "cannot write tensor 'a': its name occurs twice");
  CHECK(why({{"__metadata__", DType::kF32, {2}, bytes}}) ==
        "cannot write tensor '__metadata__': the format reserves this name");
  CHECK(why({{"\xff", DType::kF32, {2}, bytes}}) ==
        "cannot write tensors: a name or the metadata is not valid UTF-8");
  CHECK_FALSE(why({{std::string(kMaxHeaderBytes, 'n'), DType::kF32, {2}, bytes}}).empty());
}

TEST_CASE("mutated files give a value or an error, and views stay inside") {
  const std::uint64_t seed = 9;
  CAPTURE(seed);
  SeededRandom random(seed);
  const Bytes good = sample();
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_FALSE(read_safetensors("f", std::span(good).first(size)).ok());
  }
  for (int round = 0; round < 30'000; ++round) {
    const Bytes file = fuzz::mutate(good, good, random);
    const auto decoded = read_safetensors("f", file);
    if (!decoded) continue;
    for (const auto& tensor : decoded->tensors) {
      if (tensor.bytes.empty()) continue;
      CHECK(tensor.bytes.data() >= file.data());
      CHECK(tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size());
    }
  }
}
