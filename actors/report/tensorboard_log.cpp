#include "actors/report/tensorboard_log.hpp"

#include <unistd.h>

#include <array>
#include <bit>
#include <filesystem>
#include <system_error>

#include "actors/report/protobuf.hpp"

namespace troupe::report {
namespace {

using namespace protobuf;

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
  return double_field(1, wall_time_s) + bytes_field(3, "brain.Event:2");
}

std::string tensorboard_event(double wall_time_s, const Figures& figures) {
  std::string summary;
  for (const auto& figure : figures.figures) {
    summary += bytes_field(1, bytes_field(1, figure.name) + float_field(2, static_cast<float>(figure.value)));
  }
  return double_field(1, wall_time_s) + varint_field(2, static_cast<std::uint64_t>(figures.global_step)) +
         bytes_field(5, summary);
}

Result<TensorBoardFile> TensorBoardFile::open(const std::string& folder, double wall_time_s,
                                              const std::string& writer) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    return io_error("cannot make the folder '" + folder + "'", failed.value(),
                    "name a folder that can be made and written");
  }
  // One of this name is the same writer's, of the same second: a run that was paused and goes on.
  auto file = LogFile::open(folder + "/events.out.tfevents." +
                                std::to_string(static_cast<std::int64_t>(wall_time_s)) + "." +
                                std::to_string(::getpid()) + "." + writer,
                            /*go_on=*/true);
  if (!file) return file.error();
  const bool is_new = file->begins_empty();
  TensorBoardFile made(*std::move(file));
  if (!is_new) return made;
  if (auto begun = made.write(tensorboard_version(wall_time_s)); !begun) {
    ErrorInfo why = begun.error();
    why.todo = "name a folder on a disk that has room";
    return why;
  }
  return made;
}

Result<void> TensorBoardFile::write(std::string_view event) {
  return file_.write(tf_record(event));
}

Result<TensorBoardLog> TensorBoardLog::open(const std::string& folder, WallTime wall_time) {
  auto file = TensorBoardFile::open(folder, wall_time(), "troupe");
  if (!file) return file.error();
  return TensorBoardLog(*std::move(file), std::move(wall_time));
}

Result<void> TensorBoardLog::take(const Event& event) {
  const Figures all = figures_of(event);
  if (all.figures.empty()) return {};
  return file_.write(tensorboard_event(wall_time_(), all));
}

}  // namespace troupe::report
