#include "runtime/objects/spill_files.hpp"

#include <fcntl.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace troupe::objects {
namespace {

constexpr std::uint64_t kSpillPart = std::uint64_t{1} << 20;
constexpr std::uint64_t kFileBytes = std::uint64_t{256} << 20;

std::uint64_t sum_of(wire::ByteView part) {
  return XXH3_64bits(part.data(), part.size());
}

}  // namespace

UniqueFd SpillDisk::open(const std::string& folder) {
  UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    std::string name = folder + "/troupe-spill-XXXXXX";  // a file system without O_TMPFILE
    file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
    if (file) ::unlink(name.c_str());
  }
  return file;
}

ssize_t SpillDisk::write(int file, const void* bytes, std::size_t size, off_t offset) {
  return ::pwrite(file, bytes, size, offset);
}

std::string SpillDisk::folder() const {
  for (const char* name : {"TROUPE_SPILL_FOLDER", "TMPDIR"}) {
    if (const char* folder = std::getenv(name); folder != nullptr && *folder != '\0') return folder;
  }
  return "/var/tmp";
}

std::string SpillFiles::name_of(std::uint64_t file) const {
  const auto at = files_.find(file);
  return "/proc/" + std::to_string(::getpid()) + "/fd/" +
         std::to_string(at == files_.end() ? -1 : at->second.fd.get()) + " in " + folder_;
}

/// The last file, if the object fits there, else a new one.
Result<std::uint64_t> SpillFiles::file_for(std::uint64_t bytes) {
  if (const auto last = files_.find(last_); last != files_.end() && last->second.end + bytes <= kFileBytes)
    return last_;
  File file;
  file.fd = disk_->open(folder_);
  if (!file.fd)
    return io_error("cannot make a file for objects in " + folder_, errno,
                    "set TROUPE_SPILL_FOLDER to a folder that you may write");
  files_.emplace(++last_, std::move(file));
  return last_;
}

Result<SpillFiles::Place> SpillFiles::write(wire::ByteView bytes) {
  const auto number = file_for(bytes.size());
  if (!number) return number.error();
  File& file = files_.at(*number);
  Place place{*number, file.end, bytes.size(), {}};
  for (std::uint64_t done = 0; done < bytes.size();) {
    wire::ByteView part = bytes.subspan(done, std::min<std::uint64_t>(kSpillPart, bytes.size() - done));
    place.sums.push_back(sum_of(part));
    while (!part.empty()) {
      const auto wrote =
          disk_->write(file.fd.get(), part.data(), part.size(), static_cast<off_t>(place.offset + done));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) {
        const ErrorInfo why = io_error(
            "cannot write an object of " + std::to_string(bytes.size()) + " bytes to a file in " + folder_,
            errno, "make room there, or set TROUPE_SPILL_FOLDER");
        if (file.objects == 0) {
          remove(files_.find(*number));
        } else if (::ftruncate(file.fd.get(), static_cast<off_t>(file.end)) != 0) {
          file.end = kFileBytes;  // nothing follows in it
        }
        return why;
      }
      part = part.subspan(static_cast<std::size_t>(wrote));
      done += static_cast<std::uint64_t>(wrote);
    }
  }
  file.end += bytes.size();
  ++file.objects;
  return place;
}

Result<wire::ByteView> SpillFiles::read(const Place& place, std::uint64_t offset, wire::Bytes& part) const {
  const std::uint64_t index = offset / kSpillPart;
  const std::uint64_t begin = index * kSpillPart;
  part.resize(std::min(kSpillPart, place.bytes - begin));
  const int fd = files_.at(place.file).fd.get();
  for (std::size_t done = 0; done < part.size();) {
    const auto got =
        ::pread(fd, part.data() + done, part.size() - done, static_cast<off_t>(place.offset + begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read an object from " + name_of(place.file), errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
    if (done == part.size() && sum_of(part) == place.sums[index])
      return wire::ByteView(part).subspan(offset - begin);
  }
  return ErrorInfo{ErrorCode::kCorrupt, "cannot read an object from " + name_of(place.file),
                   "its bytes are not those that were written", "check the disk"};
}

void SpillFiles::remove(std::map<std::uint64_t, File>::iterator file) {
  disk_->remove(std::move(file->second.fd));
  files_.erase(file);
}

void SpillFiles::drop(const Place& place) {
  const auto at = files_.find(place.file);
  if (at == files_.end()) return;
  if (--at->second.objects == 0) {
    remove(at);
  } else {
    (void)::fallocate(at->second.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(place.offset), static_cast<off_t>(place.bytes));
  }
}

}  // namespace troupe::objects
