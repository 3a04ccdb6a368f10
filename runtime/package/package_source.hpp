/// A package made of a folder or a file of this machine: its list of files, and its bytes as they are read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/package/manifest.hpp"

namespace troupe {

/// A file that a package has besides, under a name of its own.
struct ExtraFile {
  std::string name;  ///< "folder/name"; its folder is made
  std::string path;  ///< of this machine
};

/// Not thread-safe. What changes on disk meanwhile is found by whoever takes the package.
class PackageSource {
 public:
  /// Hears while contents are read, file by file and within large ones: bytes so far, of all.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

  /// All that the folder holds, with links inside it as what they lead to. Sizes are looked at before any
  /// contents. Errors: kBadInput (a link out of it or to a folder, a socket, a path that is too long),
  /// kLimit, kIo.
  static Result<PackageSource> of_folder(const std::string& folder, const std::vector<ExtraFile>& extra = {},
                                         const Progress& progress = {});
  /// An executable, under its file's name.
  static Result<PackageSource> of_executable(const std::string& path,
                                             const std::vector<ExtraFile>& extra = {},
                                             const Progress& progress = {});

  const PackageManifest& manifest() const { return manifest_; }
  const std::string& id() const { return head_.id; }
  std::uint64_t bytes() const { return total_; }
  /// The next bytes from `offset` on, at most that many; at least one if `offset` < bytes(). Errors: kIo,
  /// kBadInput (a file became shorter).
  Result<wire::Bytes> read(std::uint64_t offset, std::size_t most);

 private:
  Result<void> add(const std::string& path, PackageEntry entry);
  Result<void> add_extra(const std::vector<ExtraFile>& extra);
  Result<void> walk(const std::string& root, const std::string& below);
  Result<void> finish(const Progress& progress);

  PackageManifest manifest_;
  std::vector<std::string> files_;  ///< where the contents of each entry are
  PackageHead head_;
  std::vector<std::uint64_t> starts_;  ///< of each entry's contents
  std::uint64_t total_ = 0;
  std::size_t open_entry_ = 0;  ///< of open_
  UniqueFd open_;
};

}  // namespace troupe
