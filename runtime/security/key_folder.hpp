/// Where the keys of a cluster that outlives its processes lie: files of mode 0600 in a folder of mode 0700.
#pragma once

#include <optional>
#include <string>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"
#include "runtime/security/curve_keys.hpp"

namespace troupe {

/// A key folder. A key that anybody else could have read or replaced is refused instead of used, so the
/// folder and every file must belong to this process's user and be closed to group and others. Key files are
/// written whole and synced before they get their name, so a crash leaves no half of one. Not thread-safe;
/// several processes may use one folder at once.
class KeyFolder {
 public:
  /// Makes the folder (not its parents) if it is not there. Errors: kIo, kRefused (owner, mode, no folder).
  static Result<KeyFolder> open(const std::string& path);

  /// The pair of `role` ("head", "node", "client"), generated at the first call. When two processes make it
  /// at the same time, both get the same one. Errors: kIo, kRefused, kCorrupt, kBadConfig (the role's name).
  Result<CurveKeyPair> load_or_generate(const std::string& role) const;
  /// Nothing when there is no such file.
  Result<std::optional<CurveKeyPair>> load(const std::string& role) const;

  /// The public key of somebody else (the head's, in a node's folder), replaced as a whole.
  Result<void> save_public(const std::string& role, const PublicKey& key) const;
  Result<std::optional<PublicKey>> load_public(const std::string& role) const;

 private:
  KeyFolder(UniqueFd folder, std::string path) : folder_(std::move(folder)), path_(std::move(path)) {}
  Result<std::optional<std::vector<std::byte>>> read(const std::string& name) const;
  /// False when `name` exists and `replace` is not set.
  Result<bool> write(const std::string& name, std::span<const std::byte> bytes, bool replace) const;

  UniqueFd folder_;
  std::string path_;
};

}  // namespace troupe
