#include "actors/checkpoint/file_system.hpp"

#include <fcntl.h>
#include <sys/mman.h>
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

struct OpenedFile {
  UniqueFd fd;
  std::size_t size = 0;
};

Result<OpenedFile> open_to_read(const std::string& path, std::size_t max_bytes) {
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
  return OpenedFile{std::move(fd), size};
}

}  // namespace

Result<MappedFile> FileSystem::map(const std::string& path, std::size_t max_bytes) {
  auto bytes = read(path, max_bytes);
  if (!bytes) return bytes.error();
  const auto owner = std::make_shared<const std::vector<std::byte>>(*std::move(bytes));
  return MappedFile{owner, *owner};
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
  const auto file = open_to_read(path, max_bytes);
  if (!file) return file.error();
  const auto& [fd, size] = *file;
  std::vector<std::byte> bytes(size);
  std::size_t at = 0;
  while (at < size) {
    const ssize_t got = ::read(fd.get(), bytes.data() + at, std::min(size - at, kReadBytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", path, errno);
    if (got == 0) break;
    at += static_cast<std::size_t>(got);
    if (progress_) progress_();
  }
  bytes.resize(at);
  return bytes;
}

Result<MappedFile> PosixFileSystem::map(const std::string& path, std::size_t max_bytes) {
  const auto file = open_to_read(path, max_bytes);
  if (!file) return file.error();
  const std::size_t size = file->size;
  if (size == 0) return MappedFile{};
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->fd.get(), 0);
  if (at == MAP_FAILED) return failed("map", path, errno);
  return MappedFile{std::shared_ptr<const void>(at, [size](void* one) { ::munmap(one, size); }),
                    {static_cast<const std::byte*>(at), size}};
}

Result<void> PosixFileSystem::rename(const std::string& from, const std::string& to) {
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
