#include "runtime/package/package_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <numeric>
#include <set>
#include <span>

#include "runtime/core/escape.hpp"
#include "runtime/security/sha256.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using Kind = PackageEntry::Kind;

constexpr const char* kCannotPack = "cannot pack the job's files";

ErrorInfo refused(const std::string& path, const std::string& why, const std::string& todo) {
  return {ErrorCode::kBadInput, kCannotPack, escape_name(path) + " " + why, todo};
}
ErrorInfo unreadable(const std::string& path, int error) {
  return io_error(std::string(kCannotPack) + ": " + escape_name(path), error,
                  "make it readable, or submit another folder");
}
UniqueFd open_file(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

constexpr std::size_t kReadAtOnce = std::size_t{256} << 10;  // zeroed for each file

/// `more` hears of each piece.
Result<std::string> hash_file(const std::string& path, const std::function<void(std::uint64_t)>& more) {
  const UniqueFd fd = open_file(path);
  if (!fd) return unreadable(path, errno);
  Sha256 hash;
  std::vector<std::byte> piece(kReadAtOnce);
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable(path, errno);
    if (got == 0) return hash.finish();
    hash.update(std::span(piece).first(static_cast<std::size_t>(got)));
    more(static_cast<std::uint64_t>(got));
  }
}

bool is_inside(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

}  // namespace

/// Errors: kLimit, before anything is read.
Result<void> PackageSource::add(const std::string& path, PackageEntry entry) {
  if (const auto wrong = wrong_package_path(entry.path); !wrong.empty())
    return refused(path, "cannot travel: " + wrong, "rename it, or leave it out");
  if (manifest_.entries.size() >= kMaxPackageEntries)
    return ErrorInfo{ErrorCode::kLimit, kCannotPack,
                     "there are more than " + std::to_string(kMaxPackageEntries) + " files and folders",
                     "leave some out, or pack them into one file"};
  total_ += entry.bytes;
  if (entry.bytes > kMaxPackageTreeBytes || total_ > kMaxPackageTreeBytes) {
    return ErrorInfo{ErrorCode::kLimit, kCannotPack,
                     "its files take more than " + std::to_string(kMaxPackageTreeBytes) + " bytes, " +
                         escape_name(path) + " among them",
                     "leave data out: put it where every node reads it, or use --node-dir"};
  }
  manifest_.entries.push_back(std::move(entry));
  files_.push_back(path);
  return {};
}

Result<void> PackageSource::add_extra(const std::vector<ExtraFile>& extra) {
  std::set<std::string> folders;
  for (const auto& [name, path] : extra) {
    const std::string folder = fs::path(name).parent_path().string();
    if (!folder.empty() && folders.insert(folder).second) {
      if (auto added = add(path, {folder, Kind::kFolder, 0, ""}); !added) return added;
    }
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return unreadable(path, errno);
    auto added = add(path, {name, Kind::kFile, static_cast<std::uint64_t>(info.st_size), ""});
    if (!added) return added;
  }
  return {};
}

Result<void> PackageSource::walk(const std::string& root, const std::string& below) {
  std::error_code error;
  const std::string folder = below.empty() ? root : root + "/" + below;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string path = at->path().string();
    const std::string name = (below.empty() ? "" : below + "/") + at->path().filename().string();
    if (at->is_symlink(error)) {
      const fs::path target = fs::canonical(path, error);
      if (error) return refused(path, "is a link that leads nowhere", "remove it");
      if (!is_inside(target, root))
        return refused(path, "is a link that leads out of the folder, to " + escape_name(target.string()),
                       "copy what it leads to, or use --node-dir for a folder that every node has");
      if (!fs::is_regular_file(target, error))
        return refused(path, "is a link to a folder", "copy what it leads to");
    }
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return unreadable(path, errno);
    PackageEntry entry{name, Kind::kFolder, 0, ""};
    if (S_ISREG(info.st_mode)) {
      entry.kind = (info.st_mode & S_IXUSR) != 0 ? Kind::kExecutable : Kind::kFile;
      entry.bytes = static_cast<std::uint64_t>(info.st_size);
    } else if (!S_ISDIR(info.st_mode)) {
      return refused(path, "is neither a file nor a folder", "remove it, or submit another folder");
    }
    if (auto added = add(path, entry); !added) return added;
    if (entry.kind != Kind::kFolder) continue;
    if (auto walked = walk(root, name); !walked) return walked;
  }
  if (error) return unreadable(folder, error.value());
  return {};
}

Result<void> PackageSource::finish(const Progress& progress) {
  std::uint64_t read = 0;
  const auto more = [&](std::uint64_t bytes) {
    read += bytes;
    if (progress) progress(read, total_);
  };
  std::vector<std::size_t> order(files_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return manifest_.entries[a].path < manifest_.entries[b].path;
  });
  PackageManifest sorted;
  std::vector<std::string> files;
  for (const std::size_t at : order) {
    PackageEntry& entry = manifest_.entries[at];
    if (entry.kind != Kind::kFolder) {
      auto hash = hash_file(files_[at], more);
      if (!hash) return hash.error();
      entry.sha256 = *std::move(hash);
    }
    sorted.entries.push_back(std::move(entry));
    files.push_back(std::move(files_[at]));
  }
  manifest_ = std::move(sorted);
  files_ = std::move(files);
  if (auto checked = check_manifest(manifest_); !checked) return checked;
  head_ = package_head(manifest_);
  if (head_.bytes.size() > kMaxManifestBytes)
    return ErrorInfo{ErrorCode::kLimit, kCannotPack, "the list of its files alone is too long",
                     "leave some out"};
  total_ = head_.bytes.size();
  for (const PackageEntry& entry : manifest_.entries) {
    starts_.push_back(total_);
    total_ += entry.bytes;
  }
  return {};
}

Result<PackageSource> PackageSource::of_folder(const std::string& folder, const std::vector<ExtraFile>& extra,
                                               const Progress& progress) {
  PackageSource source;
  std::error_code error;
  const std::string root = fs::canonical(folder, error).string();
  if (error) return unreadable(folder, error.value());
  if (auto walked = source.walk(root, ""); !walked) return walked.error();
  if (auto added = source.add_extra(extra); !added) return added.error();
  if (auto finished = source.finish(progress); !finished) return finished.error();
  return Result<PackageSource>(std::move(source));
}

Result<PackageSource> PackageSource::of_executable(const std::string& path,
                                                   const std::vector<ExtraFile>& extra,
                                                   const Progress& progress) {
  PackageSource source;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return unreadable(path, errno);
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  auto added = source.add(path, {fs::path(path).filename().string(), Kind::kExecutable, bytes, ""});
  if (added) added = source.add_extra(extra);
  if (!added) return added.error();
  if (auto finished = source.finish(progress); !finished) return finished.error();
  return Result<PackageSource>(std::move(source));
}

Result<wire::Bytes> PackageSource::read(std::uint64_t offset, std::size_t most) {
  if (offset < head_.bytes.size()) {
    const auto from = head_.bytes.begin() + static_cast<std::ptrdiff_t>(offset);
    const std::size_t count = std::min(most, head_.bytes.size() - static_cast<std::size_t>(offset));
    return wire::Bytes(from, from + static_cast<std::ptrdiff_t>(count));
  }
  wire::Bytes bytes;
  auto at = static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) -
                                     starts_.begin());  // the entry behind it
  for (; at-- > 0 && manifest_.entries[at].bytes == 0;) {
  }
  for (; at < starts_.size() && bytes.size() < most; ++at) {
    const PackageEntry& entry = manifest_.entries[at];
    const std::uint64_t from = offset + bytes.size() - starts_[at];
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(most - bytes.size(), entry.bytes - from));
    if (count == 0) continue;
    if (!open_ || open_entry_ != at) open_ = open_file(files_[at]);
    if (!open_) return unreadable(files_[at], errno);
    open_entry_ = at;
    const std::size_t before = bytes.size();
    bytes.resize(before + count);
    const ssize_t got = ::pread(open_.get(), bytes.data() + before, count, static_cast<off_t>(from));
    if (got < 0) return unreadable(files_[at], errno);
    if (got == 0) return refused(files_[at], "became shorter while it was sent", "submit the job again");
    bytes.resize(before + static_cast<std::size_t>(got));
    if (static_cast<std::size_t>(got) < count) break;
  }
  return bytes;
}

}  // namespace troupe
