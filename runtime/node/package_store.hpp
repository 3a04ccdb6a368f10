/// The executables that a node has, or is getting (package_fetches.hpp decides on them).
///
/// ```
/// <folder>/<hash>        one that an actor may need after this node's end, whole
/// <folder>/<hash>.part   on its way to the disk
/// ```
#pragma once

#include <functional>
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
  /// Called in the store's own thread: one that was there, to keep(), or why it is not here.
  using OnRead = std::function<void(const std::string& hash, Result<UniqueFd> executable)>;
  /// Keeps executables in `folder` from now on. Those that are there, whose hashes it answers, are read
  /// beside whoever asked, one after another. What cannot be read, or is no executable of its name, is
  /// removed.
  std::vector<std::string> open(const std::string& folder, OnRead on_read);
  /// Appends a piece to the download of its hash.
  PartTaken take(const wire::PackagePart& part);
  /// The piece; its total is 0 when it cannot be read.
  wire::PackagePart read(const wire::PackageAsk& ask, bool own);
  /// An executable that a driver of this node brought, or that was read.
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
  std::string folder_;  ///< empty: nothing is kept on a disk
  std::map<std::string, UniqueFd> whole_;
  std::map<std::string, PackageDownload> coming_;
  UniqueFd own_;
  std::optional<WorkThread> work_;
};

}  // namespace troupe::node
