#include "actors/data/idx.hpp"

#include <sys/stat.h>

#include "runtime/core/random.hpp"
#include "tests/actors/data/idx_files.hpp"
#include "tests/fuzz/mutate.hpp"

using namespace troupe;
using namespace troupe::data;
using namespace troupe::data::testing;

namespace {

std::string why_not(std::span<const std::byte> bytes, IdxKind kind = IdxKind::kImages) {
  const auto decoded = decode_idx("f", bytes, kind);
  REQUIRE_FALSE(decoded.ok());
  CHECK(decoded.error().code == ErrorCode::kCorrupt);
  CHECK(decoded.error().what == "cannot use IDX file 'f'");
  CHECK_FALSE(decoded.error().todo.empty());
  return decoded.error().why;
}

}  // namespace

TEST_CASE("images and labels decode, plain and compressed") {
  const auto plain = image_file(3, 4, 5);
  for (const auto& bytes : {plain, gzip(plain)}) {
    const auto images = decode_idx("f", bytes, IdxKind::kImages);
    REQUIRE(images.ok());
    CHECK(images->count == 3);
    CHECK(images->rows == 4);
    CHECK(images->columns == 5);
    REQUIRE(images->data.size() == 60);
    CHECK(images->data[59] == (59 * 7) % 256);
  }
  const auto labels = decode_idx("f", gzip(label_file({7, 0, 9})), IdxKind::kLabels);
  REQUIRE(labels.ok());
  CHECK(labels->data == std::vector<std::uint8_t>{7, 0, 9});
  CHECK(decode_idx("f", gzip(label_file({})), IdxKind::kLabels)->count == 0);
}

TEST_CASE("each defect is named with what was expected and what was found") {
  const auto good = image_file(2, 2, 2);
  auto longer = good;
  longer.push_back({});
  CHECK(why_not({}) == "expected a header of 16 bytes, found 0");
  CHECK(why_not(good, IdxKind::kLabels) == "expected magic 2049 (labels), found 2051");
  CHECK(why_not(std::span(good).first(20)) == "expected 8 bytes after the header, found 4");
  CHECK(why_not(longer) == "expected 8 bytes after the header, found 9");
  CHECK(why_not(gzip(std::span(good).first(20))) == "expected 8 bytes after the header, found 4");
  CHECK(why_not(gzip(longer)) == "expected 8 bytes after the header, found more");
  auto packed = gzip(good);
  packed.push_back({});
  CHECK(why_not(packed) == "1 bytes follow the end of the gzip stream");
  packed = gzip(good);
  packed.pop_back();
  CHECK(why_not(packed) == "the gzip stream is cut off");
  packed = gzip(good);
  packed[packed.size() - 6] ^= std::byte{1};
  CHECK(why_not(packed) == "the gzip stream is damaged (incorrect data check)");
}

TEST_CASE("a lying header allocates nothing") {
  Bytes huge;
  for (const std::uint32_t word : {2051U, 0xffffffffU, 0xffffffffU, 0xffffffffU}) put_big_endian(huge, word);
  CHECK(why_not(huge) == "the header's dimensions multiply to more than 2^64 bytes");
  CHECK(why_not(gzip(huge)) == "the header's dimensions multiply to more than 2^64 bytes");
  Bytes big;
  for (const std::uint32_t word : {2051U, 0xffffffffU, 1024U, 1024U}) put_big_endian(big, word);
  CHECK(why_not(big) == "expected 4503599626321920 bytes after the header, found 0");
  CHECK_THAT(why_not(gzip(big)), Catch::Contains("the header promises 4503599626321920 bytes, more than"));
}

TEST_CASE("a file cut at any byte is refused, and one with any bit flipped decodes only plain pixels") {
  const auto plain = image_file(2, 3, 3);
  for (const auto& bytes : {plain, gzip(plain)}) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      CHECK_FALSE(decode_idx("f", std::span(bytes).first(size), IdxKind::kImages).ok());
    }
  }
  for (std::size_t bit = 0; bit < plain.size() * 8; ++bit) {
    auto flipped = plain;
    flipped[bit / 8] ^= std::byte(1 << bit % 8);
    CHECK(decode_idx("f", flipped, IdxKind::kImages).ok() == (bit / 8 >= 16));
  }
}

TEST_CASE("mutated files give a value or an error") {
  const std::uint64_t seed = 20;
  CAPTURE(seed);
  SeededRandom random(seed);
  const auto plain = image_file(4, 5, 6);
  const auto packed = gzip(plain);
  for (int round = 0; round < 20'000; ++round) {
    const Bytes bytes = fuzz::mutate(round % 2 == 0 ? plain : packed, plain, random);
    const auto decoded = decode_idx("f", bytes, IdxKind::kImages);
    if (decoded.ok()) {
      CHECK(decoded->data.size() == std::size_t{decoded->count} * decoded->rows * decoded->columns);
    }
  }
}

TEST_CASE("files that cannot be read name the path") {
  const Folder folder;
  const auto missing = read_idx(folder.path() + "/none", IdxKind::kImages);
  CHECK(missing.error().message() ==
        "cannot read IDX file '" + folder.path() +
            "/none': No such file or directory (check the path and its permissions)");
  CHECK(read_idx(folder.path(), IdxKind::kImages).error().why == "it is not a regular file");
  const std::string fifo = folder.path() + "/fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(read_idx(fifo, IdxKind::kImages).error().why == "it is not a regular file");
  const auto path = folder.file("images", gzip(image_file(1, 2, 2)));
  CHECK(read_idx(path, IdxKind::kImages)->data.size() == 4);
  CHECK(read_idx(path, IdxKind::kLabels).error().what == "cannot use IDX file '" + path + "'");
}
