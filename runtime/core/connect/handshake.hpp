/// How two processes that share a key prove to each other who they are, before a byte of payload is read.
/// Ranks of a process group share their job's key; a store and its ranks, too; so do an object's owner and
/// who reads it, which are ranks 0 and 1 of two.
///
/// Four messages of fixed length; nothing in them says how much to read. C is the rank that connects, A the
/// one that accepts; MAC is BLAKE2b keyed with the job's key:
///
///   C -> A  hello      64   header, generation, world size, from, to, whether it encrypts, C's nonce
///   A -> C  challenge  80   header, verdict, A's nonce, MAC("acceptor", hello, challenge up to here)
///   C -> A  proof      48   header, MAC("connector", hello, challenge, proof up to here)
///   A -> C  accept     48   header, verdict, MAC("accepted", hello, challenge, proof, accept up to here)
///
/// Both nonces are fresh and every MAC covers all that was said and the role of who says it: replays,
/// reflections and messages of another generation or pair of ranks do not verify. A refusal carries a verdict
/// and no MAC: it tells an honest mistake from another, and an impostor that forges one gains no more than by
/// hanging up.
///
/// Another world size, or encryption at one end alone, is refused after the proof: who says so belongs to the
/// job, and the job learns of it.
///
/// The purpose of a connection ("data" between ranks, "store" at a rendezvous, "object") is part of every
/// MAC, so that no proof for one serves for another.
///
/// Pure: bytes in, bytes out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/core/ids.hpp"
#include "runtime/core/random.hpp"
#include "runtime/core/result.hpp"

namespace troupe {

using KeyView = std::span<const std::byte, 32>;  ///< the shared key; its owner keeps it alive
using HelloBytes = std::array<std::byte, 64>;
using ChallengeBytes = std::array<std::byte, 80>;
using ProofBytes = std::array<std::byte, 48>;
using AcceptBytes = std::array<std::byte, 48>;

/// Who takes part.
struct HandshakeIdentity {
  Generation generation;
  int world_size = 1;
  int rank = 0;
  std::string_view purpose = "data";  ///< at most 8 characters, of static storage
  bool encrypts = false;              ///< what is said after the handshake; both ends do, or neither
};

enum class Verdict : std::uint32_t {
  kWelcome = 0,
  kVersion = 1,     ///< another version of this protocol
  kGeneration = 2,  ///< another generation
  kWorldSize = 3,   ///< another world size
  kRank = 4,        ///< not for this rank, or from one that is not awaited
  kKey = 5,         ///< another key
  kEncryption = 6,  ///< one encrypts and the other does not
};

/// A name that only who has the key can know: 32 hexadecimal digits. `what`: of what.
std::string private_name(KeyView key, const std::string& what);

/// The side that connects.
class ConnectorHandshake {
 public:
  ConnectorHandshake(KeyView key, const HandshakeIdentity& self, int peer, Random& random);
  const HelloBytes& hello() const { return hello_; }
  /// Errors: kRefused, with who refused whom and why.
  Result<ProofBytes> on_challenge(const ChallengeBytes& challenge);
  Result<void> on_accept(const AcceptBytes& accept);
  /// What the acceptor answered; kWelcome until a message of its brought something else, kKey where its proof
  /// does not hold.
  Verdict verdict() const { return verdict_; }
  /// A key for what is said next in one direction ("up" from connector to acceptor, or "down"), which nobody
  /// else has and no other connection. REQUIRES: the handshake succeeded.
  std::array<std::byte, 32> session_key(std::string_view direction) const;

 private:
  ErrorInfo refused(std::string why, std::string todo) const;
  ErrorInfo verdict_error(std::uint32_t verdict);

  KeyView key_;
  std::string_view purpose_;
  int peer_;
  Verdict verdict_ = Verdict::kWelcome;
  HelloBytes hello_{};
  ChallengeBytes challenge_{};
  ProofBytes proof_{};
};

/// The side that accepts.
class AcceptorHandshake {
 public:
  AcceptorHandshake(KeyView key, const HandshakeIdentity& self, Random& random);
  /// Whether bytes that begin like this can still become a hello. Noise is turned away at its first bytes.
  static bool may_be_hello(std::span<const std::byte> begin);
  /// The challenge. Errors: kRefused, then refusal() is what to send before hanging up, if there is anything;
  /// kUnavailable for a later generation, which is hung up on without a word, so that it tries again.
  Result<ChallengeBytes> on_hello(const HelloBytes& hello);
  Result<AcceptBytes> on_proof(const ProofBytes& proof);
  std::span<const std::byte> refusal() const { return std::span(refusal_).first(refusal_bytes_); }
  /// Whether it has proved that it has the job's key; it may be refused nevertheless.
  bool has_key() const { return has_key_; }
  /// The rank that has proved itself, or claims to be it until then.
  int peer() const { return peer_; }
  /// As the connector's.
  std::array<std::byte, 32> session_key(std::string_view direction) const;

 private:
  ErrorInfo refuse(Verdict verdict, std::string why, bool proving = false);

  KeyView key_;
  HandshakeIdentity self_;
  Random& random_;
  int peer_ = -1;
  std::uint32_t world_size_ = 0;  ///< as the peer says
  bool has_key_ = false;
  HelloBytes hello_{};
  ChallengeBytes challenge_{};
  ProofBytes proof_{};
  ChallengeBytes refusal_{};
  std::size_t refusal_bytes_ = 0;
};

}  // namespace troupe
