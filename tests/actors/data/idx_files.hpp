/// IDX files for tests: bytes, gzip, and a folder that is gone afterwards.
#pragma once

#include <zlib.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "tests/support/files.hpp"

namespace troupe::data::testing {

using Bytes = std::vector<std::byte>;

inline void put_big_endian(Bytes& bytes, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::byte>(value >> shift));
}

/// `count` images of rows x columns; pixel i of the file is i * 7 mod 256.
inline Bytes image_file(std::uint32_t count, std::uint32_t rows, std::uint32_t columns) {
  Bytes bytes;
  for (const std::uint32_t word : {2051U, count, rows, columns}) put_big_endian(bytes, word);
  for (std::size_t i = 0; i < std::size_t{count} * rows * columns; ++i) bytes.push_back(std::byte(i * 7));
  return bytes;
}

inline Bytes label_file(const std::vector<int>& labels) {
  Bytes bytes;
  put_big_endian(bytes, 2049);
  put_big_endian(bytes, static_cast<std::uint32_t>(labels.size()));
  for (const int label : labels) bytes.push_back(std::byte(label));
  return bytes;
}

inline Bytes gzip(std::span<const std::byte> bytes) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes out(deflateBound(&stream, bytes.size()) + 32);
  Bytes in(bytes.begin(), bytes.end());
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// Files of this test's own.
class Folder : public test::TempFolder {
 public:
  std::string file(const std::string& name, std::span<const std::byte> bytes = {}) const {
    const std::filesystem::path at = *this / name;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream out(at, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return at.string();
  }
};

}  // namespace troupe::data::testing
