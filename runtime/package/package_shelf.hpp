/// Packages of submitted jobs on a disk: those that are whole, and those that are coming, in pieces. The head
/// and the nodes have one each.
///
/// ```
/// <folder>/<id>        whole, and checked
/// <folder>/<id>.part   on its way; gone when the shelf is opened again
/// ```
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/package/package_reader.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// Not thread-safe. May wait for the disk.
class PackageShelf {
 public:
  /// REQUIRES: open() before anything else.
  explicit PackageShelf(std::string folder) : folder_(std::move(folder)) {}
  const std::string& folder() const { return folder_; }

  /// Makes the folder, and drops what was on its way. The ids of what is whole. Errors: kIo.
  Result<std::vector<std::string>> open();

  struct Held {
    std::uint64_t next = 0;  ///< the first byte that is missing
    bool whole = false;
  };
  /// Takes a piece; one that does not follow what is there changes nothing, and neither does one without
  /// bytes. Nothing is written before its length is known to be allowed and to fit the disk. Errors, after
  /// which nothing of it is here: those of PackageReader, kLimit (too large, too many at once), kIo.
  Result<Held> append(const wire::PackagePart& part);
  /// A piece of a whole package. Errors: kUnavailable (it is not here, or there are too many open files),
  /// kBadInput, kIo.
  Result<wire::PackagePart> read(const wire::PackageAsk& ask) const;
  void remove(const std::string& id);
  /// Its files, checked again, as the new folder `to`: all of them, or no folder. Errors: kUnavailable (as
  /// read), those of PackageReader and kCorrupt (its bytes here are not its own, or cannot be read), kIo
  /// (`to`).
  Result<void> unpack(const std::string& id, const std::string& to) const;

 private:
  struct Coming {
    explicit Coming(const std::string& id) : reader(id) {}
    PackageReader reader;
    UniqueFd fd;
    std::uint64_t next = 0;
    std::uint64_t total = 0;
  };
  std::string path_of(const std::string& id) const { return folder_ + "/" + id; }
  bool has(const std::string& id) const;
  Result<UniqueFd> open_whole(const std::string& id, ErrorCode if_unreadable) const;
  Result<Coming*> begin(const wire::PackagePart& part);
  Result<Held> take(Coming& coming, const wire::PackagePart& part);
  Result<void> finish(Coming& coming, const std::string& id);
  ErrorInfo disk_error(int error) const;

  const std::string folder_;
  std::map<std::string, std::unique_ptr<Coming>> coming_;
};

}  // namespace troupe
