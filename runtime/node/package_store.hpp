/// The executables that a node has, or is getting (package_fetches.hpp decides on them).
#pragma once

#include <map>
#include <string>

#include "runtime/node/node_events.hpp"
#include "runtime/node/package.hpp"

namespace troupe::node {

/// Not thread-safe: the node's loop owns it.
class PackageStore {
 public:
  /// Appends a piece to the download of its hash.
  PartTaken take(const wire::PackagePart& part);
  /// The piece; its total is 0 when it cannot be read.
  wire::PackagePart read(const wire::PackageAsk& ask, bool own);
  /// An executable that a driver of this node brought.
  void keep(const std::string& hash, UniqueFd executable) {
    whole_.insert_or_assign(hash, std::move(executable));
  }
  void forget(const std::string& hash);
  /// The descriptor to run, or -1 for our own executable. Errors: kUnavailable (it is not here).
  Result<int> program(const std::string& hash, const std::string& own_hash) const;

 private:
  std::map<std::string, UniqueFd> whole_;
  std::map<std::string, PackageDownload> coming_;
  UniqueFd own_;
};

}  // namespace troupe::node
