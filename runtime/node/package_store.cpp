#include "runtime/node/package_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>

#include "runtime/core/log.hpp"

namespace troupe::node {
namespace {

namespace fs = std::filesystem;

bool is_hash(const std::string& name) {
  return name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// In the work thread.
Result<void> write_executable(int from, const std::string& hash, const std::string& path) {
  const UniqueFd to(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!to) return io_error("cannot write " + path, errno, "make its folder writable");
  for (wire::PackageAsk ask{hash, 0};;) {
    const auto part = read_package_part(from, ask);
    if (!part) return part.error();
    std::size_t done = 0;
    while (done < part->bytes.size()) {
      const ssize_t wrote = ::write(to.get(), part->bytes.data() + done, part->bytes.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return io_error("cannot write " + path, wrote < 0 ? errno : ENOSPC, "free space");
      done += static_cast<std::size_t>(wrote);
    }
    ask.offset += done;
    if (ask.offset >= part->total) return {};
  }
}

/// Into memory, as it was: nobody can change it there.
Result<UniqueFd> read_executable(const std::string& hash, const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return io_error("cannot read " + path, errno);
  PackageDownload download(hash);
  for (;;) {
    const auto part = read_package_part(fd.get(), download.next());
    const auto whole = part ? download.feed(*part) : Result<bool>(part.error());
    if (!whole) return whole.error();
    if (*whole) return download.take();
  }
}

}  // namespace

std::vector<std::string> PackageStore::open(const std::string& folder, OnRead on_read) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    log(LogLevel::kWarning, "cannot make the folder " + folder + ": " + error.message() +
                                ": a node that is started after this one's end lacks its executables");
    return {};
  }
  ::chmod(folder.c_str(), 0700);
  folder_ = folder;
  work_.emplace();
  std::vector<fs::path> others;
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    is_hash(name) ? found.push_back(name) : others.push_back(entry.path());
  }
  for (const fs::path& path : others) fs::remove(path, error);
  for (const std::string& hash : found) {
    work_->post([hash, path = std::string(folder).append("/").append(hash), on_read] {
      auto executable = read_executable(hash, path);
      std::error_code ignored;
      if (!executable) {
        log(LogLevel::kWarning, "the executable that was kept is dropped: " + executable.error().message());
        fs::remove(path, ignored);
      }
      on_read(hash, std::move(executable));
    });
  }
  return found;
}

void PackageStore::store(const std::string& hash) {
  const auto at = whole_.find(hash);
  if (folder_.empty() || at == whole_.end() || !is_hash(hash)) return;
  auto fd = std::make_shared<UniqueFd>(::fcntl(at->second.get(), F_DUPFD_CLOEXEC, 0));
  work_->post([fd, hash, path = folder_ + "/" + hash] {
    std::error_code error;
    if (fs::exists(path, error)) return;
    const std::string part = path + ".part";
    auto written = *fd ? write_executable(fd->get(), hash, part)
                       : Result<void>(io_error("cannot read an executable", EMFILE, "raise ulimit -n"));
    if (written && ::rename(part.c_str(), path.c_str()) != 0)
      written = io_error("cannot write " + path, errno);
    if (written) return;
    fs::remove(part, error);
    log(LogLevel::kWarning,
        written.error().message() + ". A node that is started after this one's end lacks this executable");
  });
}

PartTaken PackageStore::take(const wire::PackagePart& part) {
  PackageDownload& download = coming_.try_emplace(part.hash, part.hash).first->second;
  PartTaken taken;
  taken.hash = part.hash;
  const auto fed = download.feed(part);
  if (fed) {
    taken.next = download.next().offset;
    taken.whole = *fed;
    if (*fed) whole_.insert_or_assign(part.hash, download.take());
  } else {
    taken.error = fed.error();
  }
  if (!fed || *fed) coming_.erase(part.hash);
  return taken;
}

wire::PackagePart PackageStore::read(const wire::PackageAsk& ask, bool own) {
  wire::PackagePart none{ask.hash, ask.offset, 0, {}};
  if (own && !own_) own_ = UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const auto at = whole_.find(ask.hash);
  const int fd = own ? own_.get() : at != whole_.end() ? at->second.get() : -1;
  if (fd < 0) return none;
  auto part = read_package_part(fd, ask);
  if (part) return *std::move(part);
  log(LogLevel::kError, part.error().message());
  return none;
}

void PackageStore::forget(const std::string& hash) {
  whole_.erase(hash);
  coming_.erase(hash);
  if (folder_.empty() || !is_hash(hash)) return;
  work_->post([path = folder_ + "/" + hash] {
    std::error_code ignored;
    fs::remove(path, ignored);
  });
}

Result<int> PackageStore::program(const std::string& hash, const std::string& own_hash) const {
  if (hash.empty() || hash == own_hash) return -1;
  const auto at = whole_.find(hash);
  if (at == whole_.end()) {
    return ErrorInfo{ErrorCode::kUnavailable, "cannot start a worker",
                     "the executable " + hash.substr(0, 12) + " is not here", "spawn it again"};
  }
  return at->second.get();
}

}  // namespace troupe::node
