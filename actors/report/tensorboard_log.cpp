#include "actors/report/tensorboard_log.hpp"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace troupe::report {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little endian");

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, reflected
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

std::uint32_t masked_crc(std::string_view bytes) {
  constexpr std::uint32_t kDelta = 0xa282ead8;
  return std::rotr(crc32c(bytes), 15) + kDelta;
}

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// The parts of protobuf's encoding that are needed: a key is the field's number and how it is written.
enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(int field, WireType type) {
  return varint(static_cast<std::uint64_t>(field) << 3 | type);
}

std::string bytes_field(int field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

std::string wall_time(double seconds) {
  return key(1, kFixed64) + raw(seconds);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string tf_record(std::string_view bytes) {
  const std::string length = raw(std::uint64_t{bytes.size()});
  return length + raw(masked_crc(length)) + std::string(bytes) + raw(masked_crc(bytes));
}

std::string tensorboard_version(double wall_time_s) {
  return wall_time(wall_time_s) + bytes_field(3, "brain.Event:2");
}

std::string tensorboard_event(double wall_time_s, const Figures& figures) {
  std::string summary;
  for (const auto& figure : figures.figures) {
    summary += bytes_field(
        1, bytes_field(1, figure.name) + key(2, kFixed32) + raw(static_cast<float>(figure.value)));
  }
  return wall_time(wall_time_s) + key(2, kVarint) + varint(static_cast<std::uint64_t>(figures.global_step)) +
         bytes_field(5, summary);
}

TensorBoardLog::TensorBoardLog(LogFile file, WallTime wall_time)
    : file_(std::move(file)), wall_time_(std::move(wall_time)) {}

Result<TensorBoardLog> TensorBoardLog::open(const std::string& folder, WallTime wall_time) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    return io_error("cannot make the folder '" + folder + "'", failed.value(),
                    "name a folder that can be made and written");
  }
  const double now = wall_time();
  auto file =
      LogFile::open(folder + "/events.out.tfevents." + std::to_string(static_cast<std::int64_t>(now)) + "." +
                    std::to_string(::getpid()) + ".troupe");
  if (!file) return file.error();
  if (auto begun = file->write(tf_record(tensorboard_version(now))); !begun) {
    ErrorInfo why = begun.error();
    why.todo = "name a folder on a disk that has room";
    return why;
  }
  return TensorBoardLog(*std::move(file), std::move(wall_time));
}

Result<void> TensorBoardLog::take(const Event& event) {
  const Figures all = figures_of(event);
  if (all.figures.empty()) return {};
  return file_.write(tf_record(tensorboard_event(wall_time_(), all)));
}

}  // namespace troupe::report
