/// Takes a package apart as its bytes come, in pieces of any size, and checks all of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/package/manifest.hpp"
#include "runtime/security/sha256.hpp"

namespace troupe {

/// What becomes of a package's contents. Called in the manifest's order; a file's end only if its digest
/// holds. The first error ends the reading.
class PackageSink {
 public:
  virtual ~PackageSink() = default;
  virtual Result<void> begin(const PackageEntry& entry) = 0;
  virtual Result<void> take(wire::ByteView bytes) = 0;
  virtual Result<void> end() = 0;
};

/// Not thread-safe. Holds the manifest, as far as it has come, and nothing of the contents.
class PackageReader {
 public:
  /// `id`: its name, which is the manifest's SHA-256. `sink` may be null: it is checked, and no more.
  explicit PackageReader(std::string id, PackageSink* sink = nullptr) : id_(std::move(id)), sink_(sink) {}

  /// Errors: kBadInput (it is no package, or a path leaves it), kLimit, kCorrupt (a digest does not hold, or
  /// bytes follow its end), and what the sink says. After one it takes nothing more.
  Result<void> feed(wire::ByteView bytes);
  /// All of it came, and holds.
  bool is_whole() const { return has_manifest_ && next_ == manifest_.entries.size(); }

 private:
  Result<void> take(wire::ByteView& bytes);
  Result<void> take_prefix(wire::ByteView& bytes);
  Result<void> take_manifest(wire::ByteView& bytes);
  Result<void> take_contents(wire::ByteView& bytes);
  Result<void> begin_entries();
  Result<void> end_file();
  bool collect(wire::ByteView& bytes, std::size_t until);

  const std::string id_;
  PackageSink* const sink_;
  wire::Bytes head_;  ///< the prefix, then the manifest's bytes, while they come
  std::size_t manifest_bytes_ = 0;
  bool has_prefix_ = false;
  bool has_manifest_ = false;
  PackageManifest manifest_;
  std::size_t next_ = 0;          ///< the entry at hand, or the one that comes next
  std::optional<Sha256> digest_;  ///< of the file at hand
  std::uint64_t left_ = 0;        ///< bytes of it that are to come
  std::optional<ErrorInfo> error_;
};

}  // namespace troupe
