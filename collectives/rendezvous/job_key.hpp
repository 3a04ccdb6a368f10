/// The key that makes strangers a job. Whoever has it may take part.
#pragma once

#include <optional>
#include <string>

#include "collectives/rendezvous/rendezvous.hpp"
#include "collectives/rendezvous/store/store_server.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::collectives {

/// Reads 64 hexadecimal digits, with white space around them. Errors: kBadConfig, which quotes nothing.
Result<JobKey> parse_job_key(std::string_view text, const std::string& source);
std::string to_text(const JobKey& key);
JobKey random_job_key();

/// The key of the option, of TROUPE_JOB_KEY or of the file TROUPE_JOB_KEY_FILE, in this order; empty: none is
/// given. Errors: kBadConfig, kRefused for a file that others can read, kIo.
Result<std::optional<JobKey>> configured_job_key(const std::string& option, const Environment& environment);

/// Reads a small file of this user that nobody else can read. Errors: kUnavailable where there is none,
/// kRefused where it is another's or others can read it, kIo.
Result<std::string> read_private_file(const std::string& path);

/// A key for the ranks on this machine that one user starts, in a file that this user alone can read. It is
/// in $XDG_RUNTIME_DIR/troupe or /tmp/troupe-UID, named after the port, and goes with rank 0; that of a rank
/// 0 that was killed is removed by the next one.
class LocalKeyFile {
 public:
  /// Rank 0, which has the port. Errors: kRefused where the folder is not this user's alone, kIo.
  static Result<LocalKeyFile> create(std::uint16_t port, const Environment& environment);
  /// The others. Errors: kUnavailable where rank 0 has not been there yet, kRefused, kIo.
  static Result<JobKey> read(std::uint16_t port, const Environment& environment);

  LocalKeyFile(LocalKeyFile&& other) noexcept
      : path_(std::exchange(other.path_, {})), key_(other.key_), locked_(std::move(other.locked_)) {}
  LocalKeyFile& operator=(LocalKeyFile&&) = delete;
  ~LocalKeyFile();
  const JobKey& key() const { return key_; }

 private:
  LocalKeyFile(std::string path, const JobKey& key, UniqueFd locked)
      : path_(std::move(path)), key_(key), locked_(std::move(locked)) {}
  std::string path_;  ///< empty: moved from
  JobKey key_;
  UniqueFd locked_;  ///< the file: as long as this process lives, it is no left one
};

}  // namespace troupe::collectives
