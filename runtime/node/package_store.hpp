/// The executables that a node has, or is getting (package_fetches.hpp decides on them).
///
/// ```
/// <folder>/<hash>        one that an actor may need after this node's end, whole
/// <folder>/<hash>.part   on its way to the disk
/// ```
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/node/node_events.hpp"
#include "runtime/node/package.hpp"
#include "runtime/package/work_thread.hpp"

namespace troupe::node {

/// Not thread-safe: the node's loop owns it.
class PackageStore {
 public:
  /// Keeps executables in `folder` from now on, and takes those that are there: their hashes. What is there
  /// and cannot be read, or is no executable of its name, is removed.
  std::vector<std::string> open(const std::string& folder);
  /// Appends a piece to the download of its hash.
  PartTaken take(const wire::PackagePart& part);
  /// The piece; its total is 0 when it cannot be read.
  wire::PackagePart read(const wire::PackageAsk& ask, bool own);
  /// An executable that a driver of this node brought.
  void keep(const std::string& hash, UniqueFd executable) {
    whole_.insert_or_assign(hash, std::move(executable));
  }
  /// Has one that is here in the folder, too, if there is one, after a while. A disk that takes it not is
  /// logged.
  void store(const std::string& hash);
  void forget(const std::string& hash);
  /// The descriptor to run, or -1 for our own executable. Errors: kUnavailable (it is not here).
  Result<int> program(const std::string& hash, const std::string& own_hash) const;

 private:
  bool load(const std::string& hash);

  std::string folder_;  ///< empty: nothing is kept on a disk
  std::map<std::string, UniqueFd> whole_;
  std::map<std::string, PackageDownload> coming_;
  UniqueFd own_;
  std::optional<WorkThread> work_;
};

}  // namespace troupe::node
