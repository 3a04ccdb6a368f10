/// Objects on disk, of one process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::objects {

/// Not thread-safe. Objects are written one behind another into files of up to 256 MiB, or of one larger
/// object. A file has no name: the kernel removes it with the process, however that ends, and nobody else
/// can open it. What an object took is free for others once it is dropped, on file systems that can punch
/// holes; on all others once nothing lives in its file any more.
class SpillFiles {
 public:
  using Write = std::function<ssize_t(int file, const void* bytes, std::size_t size, off_t offset)>;
  /// `write`: as pwrite; null: pwrite itself.
  explicit SpillFiles(std::string folder, Write write = {})
      : folder_(std::move(folder)), write_(std::move(write)) {}

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

  /// TROUPE_SPILL_FOLDER, else TMPDIR, else /var/tmp, which is on a disk.
  static std::string default_folder();

 private:
  struct File {
    UniqueFd fd;
    std::uint64_t end = 0;
    std::size_t objects = 0;
  };
  Result<std::uint64_t> file_for(std::uint64_t bytes);
  std::string name_of(std::uint64_t file) const;

  const std::string folder_;
  const Write write_;
  std::map<std::uint64_t, File> files_;
  std::uint64_t last_ = 0;
};

}  // namespace troupe::objects
