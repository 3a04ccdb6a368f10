#include "runtime/node/package.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "runtime/security/sha256.hpp"
#include "runtime/wire/package_name.hpp"

namespace troupe {
namespace {

constexpr const char* kWhat = "cannot get the job's executable";

ErrorInfo too_large(std::uint64_t bytes) {
  return {ErrorCode::kLimit, "cannot send an executable to other nodes",
          std::to_string(bytes) + " bytes is more than " + std::to_string(kMaxPackageBytes),
          "strip it, or link shared libraries"};
}

}  // namespace

struct PackageDownload::Digest : Sha256 {};

Result<std::string> hash_own_executable() {
  const std::string what = "cannot read this program's own executable";
  const UniqueFd fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return io_error(what, errno, "is /proc mounted?");
  if (static_cast<std::uint64_t>(info.st_size) > kMaxPackageBytes)
    return too_large(static_cast<std::uint64_t>(info.st_size));
  auto hash = sha256_of_file(fd.get());
  if (!hash) return io_error(what, errno);
  return hash;
}

Result<std::string> own_package(const std::string& libraries) {
  auto hash = hash_own_executable();
  if (!hash) return hash.error();
  std::error_code none;  // a folder that was removed is no place to run in
  return wire::package_name(*hash, std::filesystem::current_path(none).string(), libraries);
}

Result<wire::PackagePart> read_package_part(int fd, const wire::PackageAsk& ask) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return io_error("cannot read an executable", errno);
  const auto total = static_cast<std::uint64_t>(info.st_size);
  if (ask.offset >= total)
    return ErrorInfo{ErrorCode::kBadInput, "cannot read an executable",
                     "it has no byte " + std::to_string(ask.offset), ""};
  wire::PackagePart part{ask.hash, ask.offset, total,
                         wire::Bytes(std::min<std::uint64_t>(kPackagePieceBytes, total - ask.offset))};
  const ssize_t got = ::pread(fd, part.bytes.data(), part.bytes.size(), static_cast<off_t>(ask.offset));
  if (got <= 0) return io_error("cannot read an executable", got == 0 ? EIO : errno);
  part.bytes.resize(static_cast<std::size_t>(got));
  return part;
}

PackageDownload::PackageDownload(std::string hash)
    : hash_(std::move(hash)), digest_(std::make_unique<Digest>()) {}
PackageDownload::PackageDownload(PackageDownload&&) noexcept = default;
PackageDownload& PackageDownload::operator=(PackageDownload&&) noexcept = default;
PackageDownload::~PackageDownload() = default;

Result<bool> PackageDownload::feed(const wire::PackagePart& part) {
  if (part.total == 0)
    return ErrorInfo{ErrorCode::kUnavailable, kWhat, "the node that was asked does not have it",
                     "start the job again"};
  if (part.offset != offset_ || part.hash != hash_)
    return false;  // the answer to a question that was asked twice
  if (part.total > kMaxPackageBytes) return too_large(part.total);
  const bool fits = !part.bytes.empty() && part.bytes.size() <= kPackagePieceBytes &&
                    part.bytes.size() <= part.total - offset_;
  if (!fits || (total_ != 0 && part.total != total_)) {
    return ErrorInfo{ErrorCode::kBadInput, kWhat, "a piece does not fit its place",
                     "both sides must run the same build"};
  }
  total_ = part.total;
  if (!fd_) fd_ = UniqueFd(::memfd_create("troupe-package", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd_) return io_error(kWhat, errno, "raise ulimit -n");
  const ssize_t written =
      ::pwrite(fd_.get(), part.bytes.data(), part.bytes.size(), static_cast<off_t>(offset_));
  if (written != static_cast<ssize_t>(part.bytes.size()))
    return io_error(kWhat, written < 0 ? errno : ENOMEM, "free memory on this node");
  digest_->update(part.bytes);
  offset_ += part.bytes.size();
  return offset_ == total_ ? seal() : Result<bool>(false);
}

Result<bool> PackageDownload::seal() {
  const std::string hash = digest_->finish();
  if (hash != hash_)
    return ErrorInfo{ErrorCode::kCorrupt, kWhat, "what came has the hash " + hash + " instead of " + hash_,
                     "start the job again"};
  if (::fchmod(fd_.get(), 0500) != 0 ||
      ::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return io_error(kWhat, errno,
                    "does this system forbid executable memory files (sysctl vm.memfd_noexec)?");
  }
  return true;
}

}  // namespace troupe
