/// Objects on disk, of one process.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::objects {

/// What files of objects lie on. This one is the kernel's; a simulation brings another, which is full at
/// times. Not thread-safe.
class SpillDisk {
 public:
  virtual ~SpillDisk() = default;
  /// Where files are made: TROUPE_SPILL_FOLDER, else TMPDIR, else /var/tmp, which is on a disk.
  virtual std::string folder() const;
  /// A new file without a name. No descriptor: errno says why.
  virtual UniqueFd open(const std::string& folder);
  /// As pwrite.
  virtual ssize_t write(int file, const void* bytes, std::size_t size, off_t offset);
  /// No object is in it any more.
  virtual void remove(UniqueFd /*file*/) {}
};

/// Not thread-safe. Objects are written one behind another into files of up to 256 MiB, or of one larger
/// object. A file has no name: the kernel removes it with the process, however that ends, and nobody else
/// can open it. What an object took is free for others once it is dropped, on file systems that can punch
/// holes; on all others once nothing lives in its file any more.
class SpillFiles {
 public:
  explicit SpillFiles(std::shared_ptr<SpillDisk> disk) : SpillFiles(disk->folder(), disk) {}
  explicit SpillFiles(std::string folder, std::shared_ptr<SpillDisk> disk = std::make_shared<SpillDisk>())
      : folder_(std::move(folder)), disk_(std::move(disk)) {}

  struct Place {
    std::uint64_t file = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::vector<std::uint64_t> sums;  ///< XXH3 of each MiB
  };
  /// Nothing is left of it if it fails. Errors: kIo.
  Result<Place> write(wire::ByteView bytes);
  /// The MiB in which `offset` lies, from there on, checked; it lies in `part`. REQUIRES: offset <
  /// place.bytes. Errors: kCorrupt, kIo; they name the file.
  Result<wire::ByteView> read(const Place& place, std::uint64_t offset, wire::Bytes& part) const;
  void drop(const Place& place);

  std::size_t files() const { return files_.size(); }
  /// For tests.
  int descriptor(std::uint64_t file) const { return files_.at(file).fd.get(); }

 private:
  struct File {
    UniqueFd fd;
    std::uint64_t end = 0;
    std::size_t objects = 0;
  };
  Result<std::uint64_t> file_for(std::uint64_t bytes);
  void remove(std::map<std::uint64_t, File>::iterator file);
  std::string name_of(std::uint64_t file) const;

  const std::string folder_;
  const std::shared_ptr<SpillDisk> disk_;
  std::map<std::uint64_t, File> files_;
  std::uint64_t last_ = 0;
};

}  // namespace troupe::objects
