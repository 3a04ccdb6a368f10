#include "runtime/package/package_shelf.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "runtime/node/package.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCannotKeep = "cannot keep a job's package";
constexpr const char* kPart = ".part";
constexpr std::size_t kMostComing = 64;
/// Left on the disk for others: the head's store, output of jobs.
constexpr std::uint64_t kReserveBytes = std::uint64_t{256} << 20;

ErrorInfo not_here(const std::string& id) {
  return {ErrorCode::kUnavailable, "cannot read a job's package",
          "package " + id.substr(0, 12) + " is not here", "submit the job again"};
}

/// It is here, and its disk does not give it; or this process has no descriptor for it (kUnavailable).
ErrorInfo unreadable(ErrorCode code, const std::string& path, int error) {
  const bool is_short = error == EMFILE || error == ENFILE || error == ENOMEM;
  ErrorInfo info = io_error("cannot read a job's package at " + path, error,
                            is_short ? "raise ulimit -n" : "look at that disk");
  info.code = is_short ? ErrorCode::kUnavailable : code;
  return info;
}

/// Writes a package's files below a folder that nobody else knows.
class Unpacking final : public PackageSink {
 public:
  explicit Unpacking(std::string root) : root_(std::move(root)) {}

  Result<void> begin(const PackageEntry& entry) override {
    const std::string path = root_ + "/" + entry.path;
    if (entry.kind == PackageEntry::Kind::kFolder)
      return ::mkdir(path.c_str(), 0700) == 0 ? Result<void>() : Result<void>(failed());
    const mode_t mode = entry.kind == PackageEntry::Kind::kExecutable ? 0700 : 0600;
    file_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    return file_ ? Result<void>() : Result<void>(failed());
  }
  Result<void> take(wire::ByteView bytes) override {
    while (!bytes.empty()) {
      const ssize_t wrote = ::write(file_.get(), bytes.data(), bytes.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return failed();
      bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    }
    return {};
  }
  Result<void> end() override {
    file_.reset();
    return {};
  }

 private:
  ErrorInfo failed() const {
    return io_error("cannot unpack a job's package into " + root_, errno, "make room on that disk");
  }
  const std::string root_;
  UniqueFd file_;
};

}  // namespace

ErrorInfo PackageShelf::disk_error(int error) const {
  return io_error(std::string(kCannotKeep) + " in " + folder_, error,
                  "make room on that disk, and it writable");
}

Result<std::vector<std::string>> PackageShelf::open() {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return disk_error(error.value());
  ::chmod(folder_.c_str(), 0700);
  std::vector<std::string> ids;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (is_sha256_hex(name)) {
      ids.push_back(name);
    } else {
      std::error_code ignored;
      fs::remove_all(entry.path(), ignored);
    }
  }
  if (error) return disk_error(error.value());
  return ids;
}

bool PackageShelf::has(const std::string& id) const {
  return is_sha256_hex(id) && ::access(path_of(id).c_str(), F_OK) == 0;
}

Result<PackageShelf::Held> PackageShelf::append(const wire::PackagePart& part) {
  if (!is_sha256_hex(part.hash))
    return ErrorInfo{ErrorCode::kBadInput, kCannotKeep, "its name is no SHA-256",
                     "use the same build on both sides"};
  if (part.bytes.size() > kPackagePieceBytes)
    return ErrorInfo{ErrorCode::kLimit, kCannotKeep,
                     std::to_string(part.bytes.size()) + " bytes came at once",
                     "use the same build on both sides"};
  auto at = coming_.find(part.hash);
  if (at == coming_.end()) {
    if (has(part.hash)) return Held{part.total, true};
    if (part.total > kMaxPackageStreamBytes) return package_too_large(part.total);
    if (part.offset != 0 || part.bytes.empty()) return Held{};
    if (auto begun = begin(part); !begun) return begun.error();
    at = coming_.find(part.hash);
  }
  Coming& coming = *at->second;
  if (part.offset != coming.next || part.bytes.empty()) return Held{coming.next, false};
  auto taken = take(coming, part);
  if (!taken || taken->whole) coming_.erase(part.hash);
  if (!taken) ::unlink((path_of(part.hash) + kPart).c_str());
  return taken;
}

Result<PackageShelf::Coming*> PackageShelf::begin(const wire::PackagePart& part) {
  if (coming_.size() >= kMostComing)
    return ErrorInfo{ErrorCode::kLimit, kCannotKeep, std::to_string(kMostComing) + " are on their way",
                     "try again"};
  struct statvfs disk {};
  if (::statvfs(folder_.c_str(), &disk) != 0) return disk_error(errno);
  std::uint64_t promised = kReserveBytes;
  for (const auto& [id, other] : coming_) promised += other->total - other->next;
  const std::uint64_t free = disk.f_bavail * disk.f_frsize;
  if (free < promised + part.total)
    return ErrorInfo{ErrorCode::kLimit, kCannotKeep,
                     "it has " + std::to_string(part.total) + " bytes, and " +
                         std::to_string(free > promised ? free - promised : 0) + " are free for it in " +
                         folder_,
                     "make room on that disk, or leave data out of the package"};
  auto coming = std::make_unique<Coming>(part.hash);
  coming->total = part.total;
  const std::string path = path_of(part.hash) + kPart;
  coming->fd = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!coming->fd) return disk_error(errno);
  return (coming_[part.hash] = std::move(coming)).get();
}

Result<PackageShelf::Held> PackageShelf::take(Coming& coming, const wire::PackagePart& part) {
  const bool fits = part.total == coming.total && part.bytes.size() <= coming.total - coming.next;
  if (!fits)
    return ErrorInfo{ErrorCode::kBadInput, kCannotKeep, "a piece does not fit its place",
                     "submit the job again"};
  if (auto fed = coming.reader.feed(part.bytes); !fed) return fed.error();
  for (std::size_t done = 0; done < part.bytes.size();) {
    const ssize_t wrote = ::pwrite(coming.fd.get(), part.bytes.data() + done, part.bytes.size() - done,
                                   static_cast<off_t>(coming.next + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return disk_error(wrote == 0 ? ENOSPC : errno);
    done += static_cast<std::size_t>(wrote);
  }
  coming.next += part.bytes.size();
  if (coming.reader.is_whole() != (coming.next == coming.total))
    return ErrorInfo{ErrorCode::kCorrupt, kCannotKeep, "its length is another than was said",
                     "submit the job again"};
  if (coming.next < coming.total) return Held{coming.next, false};
  if (auto finished = finish(coming, part.hash); !finished) return finished.error();
  return Held{coming.next, true};
}

/// On the disk for good, before anybody is told that it is here.
Result<void> PackageShelf::finish(Coming& coming, const std::string& id) {
  const std::string path = path_of(id);
  if (::fsync(coming.fd.get()) != 0) return disk_error(errno);
  if (::rename((path + kPart).c_str(), path.c_str()) != 0) return disk_error(errno);
  const UniqueFd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) return disk_error(errno);
  return {};
}

Result<UniqueFd> PackageShelf::open_whole(const std::string& id, ErrorCode if_unreadable) const {
  if (!is_sha256_hex(id)) return not_here(id);
  UniqueFd fd(::open(path_of(id).c_str(), O_RDONLY | O_CLOEXEC));
  if (fd) return fd;
  if (errno == ENOENT) return not_here(id);
  return unreadable(if_unreadable, path_of(id), errno);
}

Result<wire::PackagePart> PackageShelf::read(const wire::PackageAsk& ask) const {
  const auto fd = open_whole(ask.hash, ErrorCode::kIo);
  if (!fd) return fd.error();
  return read_package_part(fd->get(), ask);
}

void PackageShelf::remove(const std::string& id) {
  if (!is_sha256_hex(id)) return;
  coming_.erase(id);
  ::unlink((path_of(id) + kPart).c_str());
  ::unlink(path_of(id).c_str());
}

Result<void> PackageShelf::unpack(const std::string& id, const std::string& to) const {
  const auto fd = open_whole(id, ErrorCode::kCorrupt);
  if (!fd) return fd.error();
  const std::string making = to + ".new";
  std::error_code ignored;
  fs::remove_all(making, ignored);
  const auto give_up = [&](const ErrorInfo& why) {
    fs::remove_all(making, ignored);
    return why;
  };
  std::error_code error;
  fs::create_directories(making, error);
  if (error) return io_error("cannot make the folder " + making, error.value(), "make room on that disk");
  ::chmod(making.c_str(), 0700);
  Unpacking sink(making);
  PackageReader reader(id, &sink);
  wire::Bytes buffer(kPackagePieceBytes);
  for (ssize_t got = 0; (got = ::read(fd->get(), buffer.data(), buffer.size())) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return give_up(unreadable(ErrorCode::kCorrupt, path_of(id), errno));
    if (auto fed = reader.feed(wire::ByteView(buffer).subspan(0, static_cast<std::size_t>(got))); !fed)
      return give_up(fed.error());
  }
  if (!reader.is_whole())
    return give_up({ErrorCode::kCorrupt, kCannotKeep, "package " + id.substr(0, 12) + " is cut short",
                    "submit it again"});
  if (::rename(making.c_str(), to.c_str()) != 0) return give_up(disk_error(errno));
  return {};
}

}  // namespace troupe
