/// What a submitted job brings along: files, each with its SHA-256, and their folders. README.md gives the
/// bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe {

// Bounds: checked before any memory or disk is taken for what a package says of itself.
inline constexpr std::uint64_t kMaxPackageTreeBytes = 10'000'000'000;  ///< of all its files together
inline constexpr std::size_t kMaxPackageEntries = 100'000;
inline constexpr std::size_t kMaxManifestBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMaxPackagePathBytes = 1024;

struct PackageEntry {
  enum class Kind : std::uint8_t { kFile, kExecutable, kFolder };
  friend constexpr Kind troupe_last(Kind) { return Kind::kFolder; }

  std::string path;  ///< from the package's root: "src/train.py"
  Kind kind = Kind::kFile;
  std::uint64_t bytes = 0;
  std::string sha256;  ///< of a file
  bool operator==(const PackageEntry&) const = default;
};

/// In the order of their paths' bytes: a folder stands before what it holds.
struct PackageManifest {
  std::vector<PackageEntry> entries;
  bool operator==(const PackageManifest&) const = default;
};

/// Why that path may be in no package: it is absolute, leaves the package or is none. Empty: it may.
std::string wrong_package_path(const std::string& path);

/// Errors: kBadInput (a path that leaves the package, stands twice or below a file; a digest that is none),
/// kLimit.
Result<void> check_manifest(const PackageManifest& manifest);
ErrorInfo package_too_large(std::uint64_t bytes);

/// A package's first bytes, up to the contents of its files; and its name: the SHA-256 of the manifest.
struct PackageHead {
  wire::Bytes bytes;
  std::string id;
};
/// REQUIRES: check_manifest accepts it.
PackageHead package_head(const PackageManifest& manifest);

inline constexpr std::size_t kPackageMagicBytes = 8;
inline constexpr char kPackageMagic[kPackageMagicBytes + 1] = "troupkg1";
inline constexpr std::size_t kPackagePrefixBytes = kPackageMagicBytes + 8;
/// The longest that a package may be, with its manifest.
inline constexpr std::uint64_t kMaxPackageStreamBytes =
    kMaxPackageTreeBytes + kMaxManifestBytes + kPackagePrefixBytes;

}  // namespace troupe
