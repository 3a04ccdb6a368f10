#include "runtime/package/package_reader.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/core/escape.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe {
namespace {

ErrorInfo broken(ErrorCode code, const std::string& why) {
  return {code, "refused a job's package", why, "submit the job again"};
}

}  // namespace

Result<void> PackageReader::feed(wire::ByteView bytes) {
  while (!error_ && !bytes.empty()) {
    if (auto taken = take(bytes); !taken) error_ = taken.error();
  }
  if (error_) return *error_;
  return {};
}

Result<void> PackageReader::take(wire::ByteView& bytes) {
  if (!has_prefix_) return take_prefix(bytes);
  if (!has_manifest_) return take_manifest(bytes);
  if (is_whole()) return broken(ErrorCode::kCorrupt, "bytes follow its end");
  return take_contents(bytes);
}

/// True: `head_` has that many bytes.
bool PackageReader::collect(wire::ByteView& bytes, std::size_t until) {
  const std::size_t count = std::min(bytes.size(), until - head_.size());
  head_.insert(head_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
  bytes = bytes.subspan(count);
  return head_.size() == until;
}

Result<void> PackageReader::take_prefix(wire::ByteView& bytes) {
  if (!collect(bytes, kPackagePrefixBytes)) return {};
  std::uint64_t size = 0;
  std::memcpy(&size, head_.data() + kPackageMagicBytes, sizeof size);
  if (std::memcmp(head_.data(), kPackageMagic, kPackageMagicBytes) != 0)
    return broken(ErrorCode::kBadInput, "it does not begin as one");
  if (size == 0 || size > kMaxManifestBytes)
    return broken(ErrorCode::kLimit, "its list of files has " + std::to_string(size) + " bytes, and " +
                                         std::to_string(kMaxManifestBytes) + " are the most");
  manifest_bytes_ = static_cast<std::size_t>(size);
  has_prefix_ = true;
  head_.clear();
  return {};
}

Result<void> PackageReader::take_manifest(wire::ByteView& bytes) {
  if (!collect(bytes, manifest_bytes_)) return {};
  Sha256 digest;
  digest.update(head_);
  if (digest.finish() != id_)
    return broken(ErrorCode::kCorrupt, "its list of files is not the one that it is named after");
  auto manifest = wire::decode<PackageManifest>(head_);
  if (!manifest) return manifest.error();
  if (auto checked = check_manifest(*manifest); !checked) return checked;
  manifest_ = *std::move(manifest);
  has_manifest_ = true;
  head_ = {};
  return begin_entries();
}

/// Up to the next one that has contents to come.
Result<void> PackageReader::begin_entries() {
  for (; next_ < manifest_.entries.size(); ++next_) {
    const PackageEntry& entry = manifest_.entries[next_];
    if (sink_ != nullptr) {
      if (auto begun = sink_->begin(entry); !begun) return begun;
    }
    if (entry.kind == PackageEntry::Kind::kFolder) continue;
    digest_.emplace();
    left_ = entry.bytes;
    if (left_ > 0) return {};
    if (auto ended = end_file(); !ended) return ended;
  }
  return {};
}

Result<void> PackageReader::take_contents(wire::ByteView& bytes) {
  const auto piece = bytes.subspan(0, static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size())));
  bytes = bytes.subspan(piece.size());
  digest_->update(piece);
  left_ -= piece.size();
  if (sink_ != nullptr) {
    if (auto taken = sink_->take(piece); !taken) return taken;
  }
  if (left_ > 0) return {};
  if (auto ended = end_file(); !ended) return ended;
  ++next_;
  return begin_entries();
}

Result<void> PackageReader::end_file() {
  const PackageEntry& entry = manifest_.entries[next_];
  if (digest_->finish() != entry.sha256)
    return broken(ErrorCode::kCorrupt, "the contents of '" + escape_name(entry.path) +
                                           "' are others than its list says: did the file change meanwhile?");
  return sink_ == nullptr ? Result<void>() : sink_->end();
}

}  // namespace troupe
