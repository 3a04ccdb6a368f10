/// How the hosts of one run find each other: files of a folder that all of them see.
///
/// A host that comes writes want-ID; the first one answers with token-ID, which has the head's address and
/// lets that host in once, and at the end with end-ID. `beat` changes while the first one lives.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/result.hpp"

namespace troupe::cli {

/// The first host's side. One thread.
class MeetingHost {
 public:
  /// Makes the folder of the run, mode 0700, without what an earlier one left in it. Errors: kIo, kRefused
  /// (it is another user's, or others may write to it).
  static Result<MeetingHost> open(const std::string& folder);
  /// Hosts that came since and were not answered yet.
  std::vector<std::string> waiting() const;
  Result<void> answer(const std::string& id, const std::string& token);
  /// Says that the first host lives.
  Result<void> beat();
  /// Tells those that were answered that it is over, and how; removes the folder once they have read it,
  /// within five seconds.
  void end(int exit_code);

 private:
  explicit MeetingHost(std::string folder) : folder_(std::move(folder)) {}
  void remove_files() const;
  std::string folder_;
  std::set<std::string> answered_;
  std::uint64_t beats_ = 0;
};

/// Another host's side. One thread.
class MeetingGuest {
 public:
  MeetingGuest(std::string folder, std::string id) : folder_(std::move(folder)), id_(std::move(id)) {}
  /// Asks to be let in; again where the first host has made its folder since. False: there is no folder yet.
  bool ask() const;
  /// The path of the token, once it is there.
  std::optional<std::string> token() const;
  /// The run's exit code, once it is over.
  std::optional<int> ended() const;
  /// How long the first host has been silent, by `now`'s clock.
  Duration silence(Instant now);
  /// Removes what it left.
  void leave() const;

 private:
  const std::string folder_, id_;
  std::string last_beat_;
  Instant heard_{};
};

}  // namespace troupe::cli
