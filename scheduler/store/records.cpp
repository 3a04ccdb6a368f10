#include "scheduler/store/records.hpp"

#include "runtime/wire/codec.hpp"
#include "scheduler/store/old_records.hpp"

namespace troupe {
namespace {

constexpr std::byte kEnvelope{0xfe};
constexpr std::size_t kEnvelopeBytes = 3;
/// What version 1 knew. Its layouts are those of version 2.
constexpr std::size_t kKindsOfVersion1 = 3;

template <class Old>
Result<cluster::Record> decode_old(wire::ByteView bytes) {
  auto old = wire::decode<Old>(bytes);
  if (!old) return std::move(old).error();
  return std::visit([](auto&& record) { return store::converted(std::move(record)); }, *std::move(old));
}

}  // namespace

wire::Bytes encode_record(const cluster::Record& record) {
  wire::Bytes bytes{kEnvelope, std::byte(kRecordVersion & 0xff), std::byte(kRecordVersion >> 8)};
  const wire::Bytes body = wire::encode(record);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

Result<cluster::Record> decode_record(wire::ByteView bytes) {
  if (!bytes.empty() && std::to_integer<std::size_t>(bytes[0]) < kKindsOfVersion1)
    return decode_old<store::Record2>(bytes);
  if (bytes.size() < kEnvelopeBytes || bytes[0] != kEnvelope)
    return ErrorInfo{ErrorCode::kBadInput, "refused a record", "it does not begin as one", ""};
  const int version = std::to_integer<int>(bytes[1]) | std::to_integer<int>(bytes[2]) << 8;
  if (version > kRecordVersion) {
    return ErrorInfo{ErrorCode::kRefused, "refused a record",
                     "it has version " + std::to_string(version) + ", and this troupe knows " +
                         std::to_string(kRecordVersion),
                     "run the troupe that wrote it, or a newer one"};
  }
  const wire::ByteView body = bytes.subspan(kEnvelopeBytes);
  if (version < 3) return decode_old<store::Record2>(body);
  if (version < 4) return decode_old<store::Record3>(body);
  if (version < 5) return decode_old<store::Record4>(body);
  if (version < 6) return decode_old<store::Record5>(body);
  return wire::decode<cluster::Record>(body);
}

}  // namespace troupe
