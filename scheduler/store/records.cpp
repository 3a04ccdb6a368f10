#include "scheduler/store/records.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/wire/codec.hpp"

namespace troupe {
namespace {

constexpr std::byte kEnvelope{0xfe};
constexpr std::size_t kEnvelopeBytes = 3;
constexpr int kSummed = 11;  ///< the first version with a checksum

wire::Bytes sum_of(wire::ByteView body) {
  return wire::encode(std::uint64_t{XXH3_64bits(body.data(), body.size())});
}

/// The kinds that a version knew: later ones were added at the variant's end.
constexpr std::size_t kinds_in(int version) {
  return version < 2 ? 3 : version < 5 ? 4 : version < 6 ? 5 : std::variant_size_v<cluster::Record>;
}

/// The fields that a struct had in a version. A struct that holds one of these is listed, too; all others
/// never changed.
constexpr std::size_t kAll = SIZE_MAX;
constexpr std::size_t fields_in(int version, const cluster::NodeInfo&) {
  return version < 7 ? 7 : kAll;  // other
}
constexpr std::size_t fields_in(int, const cluster::NodeRecord&) {
  return kAll;
}
constexpr std::size_t fields_in(int version, const cluster::BundleDemand&) {
  return version < 7 ? 2 : kAll;  // other
}
constexpr std::size_t fields_in(int version, const cluster::ActorDemand&) {
  return version < 5 ? 4 : version < 7 ? 6 : kAll;  // its placement group and bundle; other
}
constexpr std::size_t fields_in(int version, const cluster::ActorSpec&) {
  return version < 3 ? 5 : version < 8 ? 7 : kAll;  // max_restarts, max_task_retries; detached
}
constexpr std::size_t fields_in(int version, const cluster::ActorRecord&) {
  return version < 3    ? 7
         : version < 5  ? 9
         : version < 9  ? 10
         : version < 10 ? 11
                        : kAll;  // incarnation, restarts; bundle; started_by; submission and the rest
}
constexpr std::size_t fields_in(int version, const cluster::SubmissionSpec&) {
  return version < 4   ? 8
         : version < 6 ? 11
         : version < 7 ? 12
                       : kAll;  // package, executable, priority; queue; other
}
constexpr std::size_t fields_in(int, const cluster::SubmissionRecord&) {
  return kAll;
}
constexpr std::size_t fields_in(int version, const cluster::JobRecord&) {
  return version < 6 ? 6 : version < 8 ? 7 : version < 9 ? 8 : kAll;  // submission; parked; started_by
}
constexpr std::size_t fields_in(int version, const cluster::GroupSpec&) {
  return version < 6 ? 4 : kAll;  // start_only
}
constexpr std::size_t fields_in(int, const cluster::GroupRecord&) {
  return kAll;
}
constexpr std::size_t fields_in(int version, const cluster::QueueRecord&) {
  return version < 9 ? 4 : kAll;  // other
}

template <class T>
bool read_in(int version, wire::Reader& from, std::vector<T>& values);

template <class T>
bool read_in(int version, wire::Reader& from, T& value) {
  if constexpr (requires { fields_in(version, value); }) {
    std::size_t left = fields_in(version, value);
    return std::apply(
        [&](auto&... field) { return ((left == 0 || (--left, read_in(version, from, field))) && ...); },
        wire::fields(value));
  } else {
    return wire::read(from, value);
  }
}

template <class T>
bool read_in(int version, wire::Reader& from, std::vector<T>& values) {
  if constexpr (requires(const T& value) { fields_in(version, value); }) {
    std::uint32_t count = 0;
    if (!wire::read(from, count)) return false;
    values.clear();
    for (; count > 0; --count) {  // ends with the bytes: each element takes some
      if (!read_in(version, from, values.emplace_back())) return false;
    }
    return true;
  } else {
    return wire::read(from, values);
  }
}

template <std::size_t... I>
bool read_kind(int version, wire::Reader& from, cluster::Record& record, std::index_sequence<I...>) {
  std::uint8_t kind = 0;
  if (!wire::read(from, kind)) return false;
  if (kind >= kinds_in(version)) return from.fail("its version has no such kind of record");
  bool ok = false;
  (void)((I == kind && (ok = read_in(version, from, record.emplace<I>()), true)) || ...);
  return ok;
}

Result<cluster::Record> decode_in(int version, wire::ByteView bytes) {
  wire::Reader from(bytes);
  cluster::Record record;
  const bool ok =
      read_kind(version, from, record, std::make_index_sequence<std::variant_size_v<cluster::Record>>{});
  if (!ok || !from.finish()) return from.error(type_name<cluster::Record>());
  return record;
}

}  // namespace

wire::Bytes encode_record(const cluster::Record& record) {
  wire::Bytes bytes{kEnvelope, std::byte(kRecordVersion & 0xff), std::byte(kRecordVersion >> 8)};
  const wire::Bytes body = wire::encode(record);
  const wire::Bytes sum = sum_of(body);
  bytes.insert(bytes.end(), body.begin(), body.end());
  bytes.insert(bytes.end(), sum.begin(), sum.end());
  return bytes;
}

Result<cluster::Record> decode_record(wire::ByteView bytes) {
  if (!bytes.empty() && std::to_integer<std::size_t>(bytes[0]) < kinds_in(1)) return decode_in(1, bytes);
  if (bytes.size() < kEnvelopeBytes || bytes[0] != kEnvelope)
    return ErrorInfo{ErrorCode::kBadInput, "refused a record", "it does not begin as one", ""};
  const int version = std::to_integer<int>(bytes[1]) | std::to_integer<int>(bytes[2]) << 8;
  if (version > kRecordVersion) {
    return ErrorInfo{ErrorCode::kRefused, "refused a record",
                     "it has version " + std::to_string(version) + ", and this troupe knows " +
                         std::to_string(kRecordVersion),
                     "run the troupe that wrote it, or a newer one"};
  }
  wire::ByteView body = bytes.subspan(kEnvelopeBytes);
  if (version >= kSummed) {
    const std::size_t size = body.size() - std::min(body.size(), sizeof(std::uint64_t));
    const wire::ByteView sum = body.subspan(size);
    body = body.first(size);
    if (!std::ranges::equal(sum, sum_of(body)))
      return ErrorInfo{ErrorCode::kBadInput, "refused a record", "it is damaged: its checksum is another one",
                       ""};
  }
  return decode_in(std::max(version, 2), body);
}

}  // namespace troupe
