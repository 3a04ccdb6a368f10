/// What one user on one machine knows of a cluster: keys, the head's address, and which processes run from
/// here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/security/key_folder.hpp"
#include "scheduler/head/head_client.hpp"

namespace troupe {

/// A file that is locked while a process lives, and says which one. A crash releases the lock; the file goes
/// with the object.
class RunLock {
 public:
  /// Errors: kRefused (a living process holds it), kIo.
  static Result<RunLock> take(const std::string& path);
  RunLock(RunLock&&) noexcept = default;
  RunLock& operator=(RunLock&&) noexcept = default;
  ~RunLock();
  /// After a fork: the child goes on under the lock, so the file names it.
  Result<void> write_pid();

 private:
  RunLock(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

/// A process that holds a run lock.
struct RunningProcess {
  std::string name;  ///< "head", "node-1f"
  pid_t pid = -1;
};

/// Mode 0700, files 0600, owned by this user: anything else is refused. Not thread-safe; several processes
/// may use one folder at once.
class ClusterFolder {
 public:
  /// $TROUPE_FOLDER, else $XDG_STATE_HOME/troupe, else ~/.local/state/troupe. Throws BadConfig when none is
  /// set.
  static std::string default_path();
  /// Makes the folder and its parents if need be. `path` empty: the default. Errors: kIo, kRefused.
  static Result<ClusterFolder> open(const std::string& path);
  /// Makes nothing: one that is not there is an error, too (kRefused: it knows no cluster).
  static Result<ClusterFolder> find(const std::string& path);

  const std::string& path() const { return path_; }
  const KeyFolder& keys() const { return keys_; }
  /// The machine's permanent key pair, made at the first call.
  Result<CurveKeyPair> own_keys() const { return keys_.load_or_generate("machine"); }

  /// Remembers where the head is and how it proves itself. Writes only what is new: a head that comes back
  /// under the same address needs no room on the disk.
  Result<void> save_head(const Endpoint& address, const PublicKey& key) const;
  /// What a head that ran from here has left no more, so that the next one begins anew without it: one line.
  /// Nothing at a first start. To be asked before a head starts, which makes what is missing.
  std::optional<std::string> lost_of_head() const;
  /// The remembered head, at `address` if given. Errors: kRefused (this folder knows no head).
  Result<HeadContact> contact(const std::optional<Endpoint>& address = std::nullopt) const;
  /// As contact; a folder that knows no head joins with the token first, which is used up. Errors also as
  /// enroll.
  Result<HeadContact> join(const Endpoint& address, const std::optional<JoinToken>& token) const;

  /// ask_head with this folder's key, one process at a time.
  Result<wire::Bytes> ask(const HeadContact& head, const wire::Control& message, Duration timeout) const;

  Result<RunLock> lock(const std::string& name) const;
  /// Who runs from this folder; files that crashed processes left are removed.
  std::vector<RunningProcess> running() const;

 private:
  ClusterFolder(std::string path, KeyFolder keys) : path_(std::move(path)), keys_(std::move(keys)) {}
  std::string path_;
  KeyFolder keys_;
};

}  // namespace troupe
