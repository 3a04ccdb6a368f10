/// How a new machine gets into a cluster: the head's owner prints a join token, carries it to the machine,
/// and it lets that machine in once.
///
/// An unknown key never gets past ZAP to show a token, so the token is a key: a one-time CURVE pair that the
/// head accepts until it is used or has run out. The joining node connects with it, sends the public key of a
/// pair that it generated itself and keeps to itself, and the one-time key is worth nothing from then on.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/result.hpp"
#include "runtime/security/curve_keys.hpp"

namespace troupe {

/// What the token's text carries. Its holder can join, so the text is a secret until it was used: it goes
/// through a file or standard input, never through argv.
struct JoinToken {
  Endpoint head;
  PublicKey head_key;
  CurveKeyPair one_time;
  std::uint64_t id = 0;
  /// For people: how long the head accepts it, from when it was issued. What counts is the head's own book,
  /// by its own clock.
  std::chrono::seconds lifetime{0};
};

/// "troupe-join-v1." and base64url. REQUIRES: a host of at most 253 characters.
std::string write_join_token(const JoinToken& token);
/// Total. An error quotes nothing of the text. A changed or cut text fails its checksum.
Result<JoinToken> read_join_token(std::string_view text);

/// The head's side of a token. It holds no secret.
struct IssuedToken {
  std::uint64_t id = 0;
  PublicKey key;
  Instant expires{0};
  bool operator==(const IssuedToken&) const = default;
};

/// The most tokens that can be open at once.
inline constexpr std::size_t kMaxOpenTokens = 1024;

/// Which tokens are open. Pure: time is passed in, and nothing is written anywhere. Not thread-safe.
class TokenBook {
 public:
  /// Errors: kLimit (too many are open), kRefused (the id is taken).
  Result<void> add(const IssuedToken& token);
  /// The open token with this id. Errors: kRefused (unknown or used, or run out), with the reason.
  Result<IssuedToken> find(std::uint64_t id, Instant now) const;
  /// Closes a token: it was used. False when it was not open.
  bool close(std::uint64_t id);
  /// Closes and returns the tokens that have run out.
  std::vector<IssuedToken> expire(Instant now);
  std::size_t open() const noexcept { return tokens_.size(); }

 private:
  std::map<std::uint64_t, IssuedToken> tokens_;
};

}  // namespace troupe
