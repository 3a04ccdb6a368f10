#include "actors/data/cifar10.hpp"

#include <algorithm>
#include <cstring>

#include "actors/data/data_file.hpp"
#include "actors/data/pixels.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {
namespace {

constexpr std::size_t kRecordBytes = 1 + Cifar10::kPixels;
constexpr int kClasses = 10;
constexpr int kTrainFiles = 5;

Result<std::vector<std::uint8_t>> inflate_all(std::string_view name, std::span<const std::byte> bytes) {
  Inflater inflater(bytes);
  if (!inflater.ready()) {
    return ErrorInfo{ErrorCode::kLimit, "cannot read '" + std::string(name) + "'", "zlib has no memory", ""};
  }
  // Memory grows with what has been inflated: nothing in the file is believed about its length.
  std::vector<std::uint8_t> all;
  std::string why;
  while (!inflater.ended()) {
    const std::size_t had = all.size();
    if (had > kMaxDataFileBytes)
      return corrupt_data_file("CIFAR-10 file", name, "it inflates to more than 4 GiB");
    all.resize(std::max(2 * had, 16 * kRecordBytes));
    all.resize(had + inflater.read(std::span(all).subspan(had), why));
    if (!why.empty()) return corrupt_data_file("CIFAR-10 file", name, why);
  }
  if (inflater.unread_bytes() != 0)
    return corrupt_data_file("CIFAR-10 file", name,
                             std::to_string(inflater.unread_bytes()) + " bytes follow the gzip stream");
  return all;
}

std::vector<std::string> files_of(const std::string& folder, Split split) {
  std::vector<std::string> names;
  if (split == Split::kTest) names.emplace_back("test_batch.bin");
  for (int i = 1; split == Split::kTrain && i <= kTrainFiles; ++i)
    names.push_back("data_batch_" + std::to_string(i) + ".bin");
  std::vector<std::string> found;
  std::string missing;
  for (const auto& name : names) {
    const std::string path = find_data_file(folder, name);
    if (path.empty()) {
      if (missing.empty()) missing = name;
      continue;
    }
    if (!missing.empty()) {
      throw_error({ErrorCode::kCorrupt, "cannot use the CIFAR-10 files in '" + folder + "'",
                   // NOLINTNEXTLINE(performance-inefficient-string-concatenation): once
                   name + " is there, but " + missing + " is not", "add it, or take the later ones away"});
    }
    found.push_back(path);
  }
  if (found.empty()) {
    throw_error({ErrorCode::kIo, "cannot read CIFAR-10 in '" + folder + "'",
                 "neither " + missing + " nor " + missing + ".gz is there",
                 "name the folder of the binary version's files"});
  }
  return found;
}

}  // namespace

Result<std::vector<std::uint8_t>> decode_cifar10(std::string_view name, std::span<const std::byte> bytes) {
  std::vector<std::uint8_t> records;
  if (is_gzip(bytes)) {
    auto inflated = inflate_all(name, bytes);
    if (!inflated) return inflated.error();
    records = std::move(*inflated);
  } else {
    const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
    records.assign(first, first + bytes.size());
  }
  if (records.empty()) return corrupt_data_file("CIFAR-10 file", name, "it holds no samples");
  if (records.size() % kRecordBytes != 0) {
    return corrupt_data_file("CIFAR-10 file", name,
                             std::to_string(records.size()) + " bytes are no multiple of a record's " +
                                 std::to_string(kRecordBytes));
  }
  for (std::size_t at = 0; at < records.size(); at += kRecordBytes) {
    if (records[at] < kClasses) continue;
    return corrupt_data_file("CIFAR-10 file", name,
                             "class " + std::to_string(records[at]) + " of sample " +
                                 std::to_string(at / kRecordBytes) + " is above 9");
  }
  return records;
}

Cifar10::Cifar10(const std::string& folder, Split split) {
  refuse_validation(split, "CIFAR-10 in '" + folder + "'");
  std::vector<std::uint8_t> all;
  for (const auto& path : files_of(folder, split)) {
    const auto bytes = read_data_file(path, "CIFAR-10 file").value();
    const auto records = decode_cifar10(path, bytes).value();
    all.insert(all.end(), records.begin(), records.end());
  }
  records_ = std::make_shared<const std::vector<std::uint8_t>>(std::move(all));
}

std::vector<FieldSpec> Cifar10::fields() const {
  return {{"input", DType::kUInt8, {3, kSide, kSide}}, {"target", DType::kInt64, {}}};
}

std::span<const std::uint8_t> Cifar10::record(std::int64_t index) const {
  TROUPE_ASSERT(index >= 0 && index < size(), "a sample index lies within the dataset");
  return std::span(*records_).subspan(static_cast<std::size_t>(index) * kRecord, kRecord);
}

void Cifar10::write(std::int64_t index, Random& /*random*/,
                    std::span<const std::span<std::byte>> places) const {
  const auto from = record(index);
  std::memcpy(places[0].data(), from.data() + 1, kPixels);
  write_target(places, from[0]);
}

void Cifar10::prefetch(std::int64_t index) const {
  constexpr std::size_t kCacheLine = 64;
  const auto sample = record(index);
  for (std::size_t at = 0; at < sample.size(); at += kCacheLine) __builtin_prefetch(sample.data() + at);
}

}  // namespace troupe::data
