/// One run at a time keeps checkpoints in a folder.
#pragma once

#include <string>

#include "actors/checkpoint/file_system.hpp"
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
  /// Takes the lock again where somebody removed its file, with the folder perhaps: true. Errors: as take.
  Result<bool> renew();
  const std::string& folder() const { return folder_; }
  const std::string& who() const { return who_; }
  /// Whether `folder`, as `files` has it, is the one that `who` locked: on another host it may be another.
  /// True where `who` is empty: nobody locked it.
  static bool is_of(FileSystem& files, const std::string& folder, const std::string& who);

 private:
  FolderLock(UniqueFd file, std::string folder, std::string who)
      : file_(std::move(file)), folder_(std::move(folder)), who_(std::move(who)) {}
  UniqueFd file_;
  std::string folder_;
  std::string who_;
};

}  // namespace troupe::checkpoint
