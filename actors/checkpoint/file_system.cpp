#include "actors/checkpoint/file_system.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "runtime/core/fd.hpp"

namespace troupe::checkpoint {
namespace {

constexpr std::size_t kReadBytes = std::size_t{16} << 20;

ErrorInfo failed(const std::string& verb, const std::string& path, int error) {
  return io_error("cannot " + verb + " '" + path + "'", error);
}

/// Whether a call failed because the system, or the disk, has no such thing.
bool cannot(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EPERM;
}

class PosixOutput final : public OutputFile {
 public:
  PosixOutput(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<void> append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t wrote = ::write(fd_.get(), bytes.data(), bytes.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return failed("write", path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    }
    return {};
  }

  Result<void> sync() override {
    // After a failed fsync the kernel forgets the pages, and a second one would lie.
    if (::fsync(fd_.get()) != 0) return failed("fsync", path_, errno);
    // Advice: whoever reads the file back then sees the disk, and not the memory it was written from.
    static_cast<void>(::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED));
    return {};
  }

 private:
  UniqueFd fd_;
  std::string path_;
};

class PosixInput final : public InputFile {
 public:
  PosixInput(UniqueFd fd, std::size_t size, std::string path, std::function<void()> progress)
      : fd_(std::move(fd)), size_(size), path_(std::move(path)), progress_(std::move(progress)) {}

  std::uint64_t size() const override { return size_; }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
    while (!into.empty()) {
      const ssize_t got =
          ::pread(fd_.get(), into.data(), std::min(into.size(), kReadBytes), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed("read", path_, errno);
      if (got == 0)
        return ErrorInfo{
            ErrorCode::kIo, "cannot read '" + path_ + "'",
            "it ends at byte " + std::to_string(offset) + " by now, it had " + std::to_string(size_), ""};
      offset += static_cast<std::uint64_t>(got);
      into = into.subspan(static_cast<std::size_t>(got));
      progressed_ += static_cast<std::uint64_t>(got);
      if (progressed_ < kReadBytes) continue;
      progressed_ = 0;
      if (progress_) progress_();
    }
    return {};
  }

 private:
  UniqueFd fd_;
  std::size_t size_;
  std::string path_;
  std::function<void()> progress_;
  std::uint64_t progressed_ = 0;  ///< bytes since it was called
};

Result<PosixInput> open_to_read(const std::string& path, std::size_t max_bytes,
                                const std::function<void()>& progress) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return failed("open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failed("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return failed("read", path, EINVAL);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > max_bytes) {
    return ErrorInfo{
        ErrorCode::kLimit, "cannot read '" + path + "'",
        "it has " + std::to_string(size) + " bytes, at most " + std::to_string(max_bytes) + " were expected",
        ""};
  }
  return PosixInput(std::move(fd), size, path, progress);
}

}  // namespace

/// Where there is nothing better: all of it, at once.
Result<std::unique_ptr<InputFile>> FileSystem::open(const std::string& path, std::size_t max_bytes) {
  class Whole final : public InputFile {
   public:
    explicit Whole(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
    std::uint64_t size() const override { return bytes_.size(); }
    Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
      if (offset > bytes_.size() || into.size() > bytes_.size() - offset)
        return io_error("cannot read behind the end of a file", ENODATA);
      std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
      return {};
    }

   private:
    const std::vector<std::byte> bytes_;
  };
  auto bytes = read(path, max_bytes);
  if (!bytes) return bytes.error();
  return std::unique_ptr<InputFile>(std::make_unique<Whole>(*std::move(bytes)));
}

Result<void> PosixFileSystem::make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return failed("make the folder", folder, error.value());
  return {};
}

Result<std::vector<std::string>> PosixFileSystem::list(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) return failed("list", folder, error.value());
  return names;
}

Result<std::unique_ptr<OutputFile>> PosixFileSystem::create(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return failed("create", path, errno);
  return std::unique_ptr<OutputFile>(std::make_unique<PosixOutput>(std::move(fd), path));
}

Result<std::vector<std::byte>> PosixFileSystem::read(const std::string& path, std::size_t max_bytes) {
  auto file = open_to_read(path, max_bytes, progress_);
  if (!file) return file.error();
  std::vector<std::byte> bytes(static_cast<std::size_t>(file->size()));
  if (auto done = file->read(0, bytes); !done) return done.error();
  return bytes;
}

Result<std::unique_ptr<InputFile>> PosixFileSystem::open(const std::string& path, std::size_t max_bytes) {
  auto file = open_to_read(path, max_bytes, progress_);
  if (!file) return file.error();
  return std::unique_ptr<InputFile>(std::make_unique<PosixInput>(*std::move(file)));
}

Result<void> PosixFileSystem::rename(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return {};
  if (!cannot(errno)) return failed("rename", from, errno);
  // NFS has no such flag; there a link takes no name that is taken.
  if (::link(from.c_str(), to.c_str()) == 0) {
    static_cast<void>(::unlink(from.c_str()));  // it has the name; the other one goes with those of its age
    return {};
  }
  if (!cannot(errno)) return failed("rename", from, errno);
  // No links either, as on FAT: two that rename in the same moment are not told apart.
  if (::access(to.c_str(), F_OK) == 0) return failed("rename", from, EEXIST);
  if (::rename(from.c_str(), to.c_str()) != 0) return failed("rename", from, errno);
  return {};
}

Result<void> PosixFileSystem::remove(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return failed("remove", path, errno);
  return {};
}

Result<void> PosixFileSystem::sync_folder(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return failed("open", folder, errno);
  if (::fsync(fd.get()) != 0) return failed("fsync", folder, errno);
  return {};
}

std::optional<std::uint64_t> PosixFileSystem::free_bytes(const std::string& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return {};
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace troupe::checkpoint
