/// A job's executable, named by the SHA-256 of its bytes: how a node that lacks it gets it from one that has
/// it.
#pragma once

#include <memory>
#include <string>

#include "runtime/core/fd.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// The largest executable, and the most of it in one message.
inline constexpr std::uint64_t kMaxPackageBytes = std::uint64_t{1} << 30;
inline constexpr std::size_t kPackagePieceBytes = std::size_t{512} << 10;

/// The SHA-256 of this process's own executable as 64 hexadecimal digits, even if its file was replaced
/// since. Errors: kIo, kLimit.
Result<std::string> hash_own_executable();

/// What this program's workers on other nodes, and on those of a running cluster, are started from: its
/// executable, the folder that it is in now, and `libraries`: the job's package that has its shared
/// libraries; empty: none travel. Errors: as hash_own_executable.
Result<std::string> own_package(const std::string& libraries = {});

/// One piece of an executable that is open as `fd`. Errors: kIo, kBadInput (an offset that it does not have).
Result<wire::PackagePart> read_package_part(int fd, const wire::PackageAsk& ask);

/// An executable that arrives in pieces, in order, in a memory file that takes no more than what came. Not
/// thread-safe.
class PackageDownload {
 public:
  explicit PackageDownload(std::string hash);
  PackageDownload(PackageDownload&&) noexcept;
  PackageDownload& operator=(PackageDownload&&) noexcept;
  ~PackageDownload();

  /// The piece to ask for next.
  wire::PackageAsk next() const { return {hash_, offset_}; }
  /// Takes a piece; one that was not asked for is ignored. True when the executable is whole and its hash
  /// holds. Errors: kUnavailable (the source does not have it), kLimit, kBadInput, kCorrupt (its hash is
  /// another), kIo.
  Result<bool> feed(const wire::PackagePart& part);
  /// The executable: sealed, close-on-exec, without a name. REQUIRES: feed returned true.
  UniqueFd take() { return std::move(fd_); }

 private:
  struct Digest;
  Result<bool> seal();

  std::string hash_;
  std::uint64_t offset_ = 0;
  std::uint64_t total_ = 0;
  UniqueFd fd_;
  std::unique_ptr<Digest> digest_;
};

}  // namespace troupe
