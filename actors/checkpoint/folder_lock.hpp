/// One run at a time keeps checkpoints in a folder.
#pragma once

#include <string>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"

namespace troupe::checkpoint {

/// Holds `folder/checkpoints.lock` while it lives; a program that dies lets go of it. The file stays: whoever
/// deleted it could take it from the next one. Best effort: where the file system has no locks, nobody is
/// refused.
class FolderLock {
 public:
  /// `who` is what another run is told: "run-12ab, pid 77 on host a". Errors: kRefused with both sides where
  /// another run has it, kIo where the file cannot be made.
  static Result<FolderLock> take(const std::string& folder, const std::string& who);

  /// False: the file system has no locks.
  bool is_held() const { return static_cast<bool>(file_); }

 private:
  explicit FolderLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

}  // namespace troupe::checkpoint
