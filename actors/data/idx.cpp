#include "actors/data/idx.hpp"

#include <array>
#include <limits>

#include "actors/data/data_file.hpp"

namespace troupe::data {
namespace {

std::uint32_t big_endian(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint32_t>(bytes[at + i]);
  return value;
}

std::size_t header_bytes(IdxKind kind) {
  return kind == IdxKind::kImages ? 16 : 8;
}

/// The dimensions of a header, with `data` still empty, and the number of bytes that must follow it.
struct Header {
  IdxArray array;
  std::uint64_t payload_bytes = 0;
};

Result<Header> decode_header(std::string_view name, std::span<const std::byte> bytes, IdxKind kind) {
  if (bytes.size() < header_bytes(kind)) {
    return corrupt_data_file("IDX file", name,
                             "expected a header of " + std::to_string(header_bytes(kind)) + " bytes, found " +
                                 std::to_string(bytes.size()));
  }
  const std::uint32_t magic = big_endian(bytes, 0);
  if (magic != static_cast<std::uint32_t>(kind)) {
    return corrupt_data_file("IDX file", name,
                             "expected magic " + std::to_string(static_cast<std::uint32_t>(kind)) + " (" +
                                 (kind == IdxKind::kImages ? "images" : "labels") + "), found " +
                                 std::to_string(magic));
  }
  Header header;
  header.array.count = big_endian(bytes, 4);
  if (kind == IdxKind::kImages) {
    header.array.rows = big_endian(bytes, 8);
    header.array.columns = big_endian(bytes, 12);
  }
  // Three 32-bit factors can overflow 64 bits.
  const std::uint64_t image = std::uint64_t{header.array.rows} * header.array.columns;
  if (image != 0 && header.array.count > std::numeric_limits<std::uint64_t>::max() / image) {
    return corrupt_data_file("IDX file", name, "the header's dimensions multiply to more than 2^64 bytes");
  }
  header.payload_bytes = image * header.array.count;
  return header;
}

Result<IdxArray> decode_plain(std::string_view name, std::span<const std::byte> bytes, IdxKind kind) {
  auto header = decode_header(name, bytes, kind);
  if (!header) return header.error();
  const auto payload = bytes.subspan(header_bytes(kind));
  if (payload.size() != header->payload_bytes) {
    return corrupt_data_file("IDX file", name,
                             "expected " + std::to_string(header->payload_bytes) +
                                 " bytes after the header, found " + std::to_string(payload.size()));
  }
  const auto* first = reinterpret_cast<const std::uint8_t*>(payload.data());
  header->array.data.assign(first, first + payload.size());
  return std::move(header->array);
}

Result<IdxArray> decode_gzip(std::string_view name, std::span<const std::byte> bytes, IdxKind kind) {
  Inflater inflater(bytes);
  if (!inflater.ready()) {
    return ErrorInfo{ErrorCode::kLimit, "cannot read '" + std::string(name) + "'", "zlib has no memory", ""};
  }
  std::array<std::uint8_t, 16> head{};
  std::string why;
  const std::size_t got = inflater.read(std::span(head).first(header_bytes(kind)), why);
  if (!why.empty()) return corrupt_data_file("IDX file", name, why);
  auto header = decode_header(name, std::as_bytes(std::span(head).first(got)), kind);
  if (!header) return header.error();
  if (header->payload_bytes / kMaxDeflateRatio > bytes.size()) {
    return corrupt_data_file("IDX file", name,
                             "the header promises " + std::to_string(header->payload_bytes) +
                                 " bytes, more than " + std::to_string(bytes.size()) +
                                 " compressed bytes can hold");
  }
  header->array.data.resize(header->payload_bytes);
  const std::size_t filled = inflater.read(header->array.data, why);
  if (!why.empty()) return corrupt_data_file("IDX file", name, why);
  if (filled != header->payload_bytes) {
    return corrupt_data_file("IDX file", name,
                             "expected " + std::to_string(header->payload_bytes) +
                                 " bytes after the header, found " + std::to_string(filled));
  }
  std::array<std::uint8_t, 1> excess{};
  const std::size_t beyond = inflater.read(excess, why);
  if (!why.empty()) return corrupt_data_file("IDX file", name, why);
  if (beyond != 0 || !inflater.ended()) {
    return corrupt_data_file(
        "IDX file", name,
        "expected " + std::to_string(header->payload_bytes) + " bytes after the header, found more");
  }
  if (inflater.unread_bytes() != 0) {
    return corrupt_data_file(
        "IDX file", name,
        std::to_string(inflater.unread_bytes()) + " bytes follow the end of the gzip stream");
  }
  return std::move(header->array);
}

}  // namespace

Result<IdxArray> decode_idx(std::string_view name, std::span<const std::byte> bytes, IdxKind kind) {
  return is_gzip(bytes) ? decode_gzip(name, bytes, kind) : decode_plain(name, bytes, kind);
}

Result<IdxArray> read_idx(const std::string& path, IdxKind kind) {
  const auto bytes = read_data_file(path, "IDX file");
  if (!bytes) return bytes.error();
  return decode_idx(path, *bytes, kind);
}

}  // namespace troupe::data
