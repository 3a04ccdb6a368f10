#include "actors/data/batch_layout.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "actors/data/sampler.hpp"
#include "tests/actors/data/batch_memory.hpp"

using namespace troupe;
using namespace troupe::data;
using namespace troupe::data::testing;

namespace {

const std::vector<std::int64_t> kLayoutIndices{4, 2, 9};

BatchLayout some_layout() {
  return BatchLayout({{"input", DType::kFloat32, {3, 2, 5}},
                      {"target", DType::kInt64, {3}},
                      {"mask", DType::kBool, {7, 3}},
                      {"empty", DType::kUInt8, {0, 4}},
                      {"scalar", DType::kFloat64, {}},
                      {"half", DType::kBFloat16, {1}}});
}

std::string why_not(std::vector<FieldSpec> fields) {
  try {
    const BatchLayout layout(std::move(fields));
  } catch (const BadConfig& error) {
    return error.what();
  }
  return "it is fine";
}

}  // namespace

TEST_CASE("a batch of fields of any dtype and shape reads as it was written") {
  const auto layout = some_layout();
  CHECK(layout.total() % 64 == 0);
  const Memory memory(layout.total() + 64);
  for (std::size_t f = 0; f < layout.fields().size(); ++f) {
    for (auto& byte : layout.place(memory.span(), f)) byte = std::byte(f + 1);
  }
  layout.seal(memory.span(), {3, 700, 2}, kLayoutIndices);
  for (const auto beyond : memory.span().subspan(layout.total())) CHECK(beyond == std::byte{0xee});

  const auto view = view_batch(memory.span());
  REQUIRE(view.ok());
  CHECK(view->key() == BatchKey{3, 700, 2});
  CHECK(view->header.count == 3);
  CHECK(view->header.index_hash == index_hash(kLayoutIndices));
  REQUIRE(view->fields.size() == layout.fields().size());
  for (std::size_t f = 0; f < view->fields.size(); ++f) {
    const auto& field = view->fields[f];
    CHECK(FieldSpec{field.name, field.dtype, field.shape} == layout.fields()[f]);
    CHECK(reinterpret_cast<std::uintptr_t>(field.bytes.data()) % 64 == 0);
    CHECK(field.bytes.size() == checked_bytes(layout.fields()[f]));
    for (const auto byte : field.bytes) CHECK(byte == std::byte(f + 1));
  }
  CHECK(view->find("mask") == &view->fields[2]);
  CHECK(view->find("nothing") == nullptr);
}

// Was: warned, with the -Wextra of a user's program, of the members that it leaves out.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wmissing-field-initializers"
TEST_CASE("a field's spec may leave out what has a default") {
  const FieldSpec shape{.shape = {1, 28, 28}}, name{.name = "input"}, neither{};
  CHECK(shape == FieldSpec{"", DType::kFloat32, {1, 28, 28}});
  CHECK(name == FieldSpec{"input", DType::kFloat32, {}});
  CHECK(neither == FieldSpec{"", DType::kFloat32, {}});
}
#pragma GCC diagnostic pop

TEST_CASE("fields that make no batch are refused, by name") {
  const auto has = [](const std::string& text, const std::string& part) {
    INFO(text);
    return text.find(part) != std::string::npos;
  };
  CHECK(has(why_not({}), "no fields"));
  CHECK(has(why_not({{"a", DType::kInt8, {1}}, {"a", DType::kInt8, {1}}}), "two fields have the name 'a'"));
  CHECK(has(why_not({{std::string(40, 'n'), DType::kInt8, {1}}}), "40 bytes"));
  CHECK(has(why_not({{"", DType::kInt8, {1}}}), "''"));
  CHECK(has(why_not({{"deep", DType::kInt8, Shape(9, 1)}}), "9 dimensions"));
  CHECK(has(why_not({{"back", DType::kInt8, {-1}}}), "negative"));
  CHECK(has(why_not({{"huge", DType::kFloat32, {1 << 20, 1 << 20}}}), "'huge': f32 [1048576, 1048576]"));
  CHECK(has(why_not({{"wrap", DType::kFloat32, {std::int64_t{1} << 62, 16}}}), "more than 4 GiB"));
  CHECK(has(why_not({{"one", DType::kInt8, {std::int64_t{3} << 30}},
                     {"two", DType::kInt8, {std::int64_t{3} << 30}}}),
            "'two'"));
  std::vector<FieldSpec> many;
  for (int i = 0; i < 65; ++i) many.push_back({std::to_string(i), DType::kInt8, {1}});
  CHECK(has(why_not(many), "65 fields"));
}

TEST_CASE("memory that holds no whole batch is refused") {
  const auto layout = some_layout();
  const Memory memory(layout.total() + 64);
  std::memset(memory.at.get(), 0, memory.size);
  layout.seal(memory.span(), {}, kLayoutIndices);
  CHECK(view_batch(memory.span().first(layout.total())).ok());
  CHECK_FALSE(view_batch(memory.span().first(layout.total() - 1)).ok());
  CHECK_FALSE(view_batch(memory.span().first(63)).ok());
  CHECK_FALSE(view_batch({}).ok());
  CHECK(view_batch(memory.span().subspan(8)).error().why == "it is not aligned to 64 bytes");
  CHECK(view_batch(memory.span().subspan(64)).error().why == "it does not begin with a batch header");
}

TEST_CASE("a field whose size overflows, or that begins in another one, is refused") {
  const auto layout = some_layout();
  const Memory memory(layout.total());
  std::memset(memory.at.get(), 0, memory.size);
  const auto why = [&](auto change) {
    layout.seal(memory.span(), {}, kLayoutIndices);
    FieldHeader first;
    std::memcpy(&first, memory.at.get() + sizeof(BatchHeader), sizeof first);
    change(first);
    std::memcpy(memory.at.get() + sizeof(BatchHeader), &first, sizeof first);
    const auto view = view_batch(memory.span());
    return view.ok() ? "it is fine" : view.error().why;
  };
  CHECK(why([](FieldHeader&) {}) == "it is fine");
  // 4 bytes times 2^62 are 0 in 64 bits.
  CHECK(why([](FieldHeader& f) {
          f.shape = {std::int64_t{1} << 62, 1, 1};
        }) == "'input' [4611686018427387904, 1, 1] does not fit");
  CHECK(why([](FieldHeader& f) { f.shape = {-1, 1, 1}; }) == "'input' has a negative extent");
  CHECK(why([](FieldHeader& f) { f.offset = 64; }) == "'input' lies outside of the batch");
  CHECK(why([](FieldHeader& f) { f.offset += 8; }) == "'input' lies outside of the batch");
  CHECK(why([](FieldHeader& f) { f.offset += 64; }) == "'target' lies outside of the batch");
  CHECK(why([](FieldHeader& f) { f.dtype = 10; }) == "'input' has no dtype");
  CHECK(why([](FieldHeader& f) { f.dimensions = 9; }) == "'input' has too many dimensions");
  CHECK(why([](FieldHeader& f) { f.name.fill('x'); }) == "a field has no name");
  CHECK(why([](FieldHeader& f) { f.name = {'m', 'a', 's', 'k'}; }) == "two fields have the name 'mask'");
}
