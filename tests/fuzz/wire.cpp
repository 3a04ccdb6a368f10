// What crosses processes: frame headers, control messages, arguments of calls; and the head's records, which
// are encoded in the same way.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "runtime/package/package_reader.hpp"
#include "runtime/security/sha256.hpp"
#include "runtime/wire/log_frames.hpp"
#include "runtime/wire/messages.hpp"
#include "scheduler/store/records.hpp"
#include "tests/fuzz/call.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {
namespace {

/// Decoded, encoded and decoded again, a value is the same: compared as bytes, since not all messages have
/// ==.
template <class T>
bool survives(wire::ByteView bytes) {
  const auto value = wire::decode<T>(bytes);
  if (!value) return false;
  const wire::Bytes again = wire::encode(*value);
  const auto twice = wire::decode<T>(again);
  check(twice.ok(), "a decoded value decodes again after it was encoded");
  check(wire::encode(*twice) == again, "a decoded value is the same after it was encoded and decoded again");
  return true;
}

/// Nothing that is begun may lie outside of the folder it is unpacked in.
class Inside final : public PackageSink {
 public:
  Result<void> begin(const PackageEntry& entry) override {
    const auto path = std::filesystem::path(entry.path);
    check(!path.empty() && path.is_relative() && path.lexically_normal() == path, "a path is a plain one");
    for (const auto& part : path) check(part != "..", "and leads nowhere else");
    begun_.insert(entry.path);
    check(!path.has_parent_path() || begun_.contains(path.parent_path().string()), "its folder is there");
    return {};
  }
  Result<void> take(wire::ByteView /*bytes*/) override { return {}; }
  Result<void> end() override { return {}; }

 private:
  std::set<std::string> begun_;
};

/// The name that its list of files would have: without it nothing of it is looked at.
std::string name_of_package(std::span<const std::byte> bytes) {
  std::uint64_t size = 0;
  if (bytes.size() < kPackagePrefixBytes) return "";
  std::memcpy(&size, bytes.data() + kPackageMagicBytes, sizeof size);
  if (size > bytes.size() - kPackagePrefixBytes) return "";
  Sha256 digest;
  digest.update(bytes.subspan(kPackagePrefixBytes, static_cast<std::size_t>(size)));
  return digest.finish();
}

}  // namespace

bool frame_header(std::span<const std::byte> bytes) {
  const auto header = wire::decode_header(bytes);
  if (!header) return false;
  const auto again = wire::encode_header(*header);
  const auto twice = wire::decode_header(again);
  check(twice.ok(), "a decoded header decodes again after it was encoded");
  check(wire::encode_header(*twice) == again, "a decoded header is the same after it was encoded");
  check(header->kind <= wire::kLastFrameKind, "an accepted frame is of a kind that there is");
  return true;
}

/// The first byte is the message's number, the rest its body.
bool control_message(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  wire::FrameHeader header;
  header.id = static_cast<std::uint64_t>(bytes[0]);
  const auto message = wire::decode_control(header, bytes.subspan(1));
  if (!message) return false;
  check(message->index() == header.id, "a message is of the kind that its number says");
  wire::FrameHeader again;
  const wire::Bytes body = wire::encode_control(*message, again);
  const auto twice = wire::decode_control(again, body);
  check(twice.ok(), "a decoded message decodes again after it was encoded");
  wire::FrameHeader thrice;
  check(wire::encode_control(*twice, thrice) == body && thrice.id == header.id,
        "a decoded message is the same after it was encoded");
  return true;
}

bool call_arguments(std::span<const std::byte> bytes) {
  auto arguments = wire::decode<Arguments>(bytes);
  if (!arguments) return false;
  // Its order may be another after the way, and with it the bytes.
  auto& index = std::get<Outer>(*arguments).index;
  const auto again = wire::decode<decltype(Outer::index)>(wire::encode(index));
  check(again.ok() && *again == index, "an unordered map is the same after it was encoded and decoded");
  index.clear();
  return survives<Arguments>(wire::encode(*arguments));
}

bool store_record(std::span<const std::byte> bytes) {
  const auto record = decode_record(bytes);
  if (!record) return false;
  decoded();
  const auto again = decode_record(encode_record(*record));
  check(again.ok() && *again == *record, "a record that was read is the same after it was written");
  return true;
}

bool log_frames(std::span<const std::byte> bytes) {
  wire::Bytes again;
  const auto taken = wire::read_log_frames(
      bytes, [&again](const wire::LogFrame& frame) { wire::append_log_frame(again, frame); });
  if (!taken) return false;
  decoded();
  check(*taken <= bytes.size() && again.size() == *taken, "frames take the bytes that they were");
  const auto twice = wire::read_log_frames(again, [](const wire::LogFrame&) {});
  check(twice.ok() && *twice == again.size(), "frames that were read are read again");
  return true;
}

bool job_package(std::span<const std::byte> bytes) {
  Inside sink;
  PackageReader reader(name_of_package(bytes), &sink);
  while (!bytes.empty()) {
    const auto piece = bytes.subspan(0, std::min<std::size_t>(bytes.size(), 50));
    bytes = bytes.subspan(piece.size());
    if (!reader.feed(piece)) return false;
  }
  return reader.is_whole();
}

}  // namespace troupe::fuzz
