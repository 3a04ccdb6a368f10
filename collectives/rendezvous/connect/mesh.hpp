/// The connections between ranks of different hosts: a listener a rank, and the mesh of one generation.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collectives/native/connector.hpp"
#include "collectives/rendezvous/connect/wait_options.hpp"
#include "runtime/core/connect/handshake.hpp"
#include "runtime/core/connect/tcp.hpp"

namespace troupe::collectives {

/// Connections that may be in the middle of a handshake; with one more the oldest goes.
inline constexpr std::size_t kMaxPendingHandshakes = 64;

struct MeshOptions {
  HandshakeIdentity self;
  /// Where the ranks of other hosts listen.
  std::map<int, Endpoint> peers;
  /// For one handshake: what takes longer is dropped.
  Duration handshake_timeout = std::chrono::seconds(5);
};

/// Connects with proof of the job's key, the generation and the rank on both sides. Noise, wrong keys, stale
/// generations and slow peers are turned away without disturbing the others.
///
/// If two ranks connect to each other at once, the higher rank's connection stays: it hangs up on the lower
/// one, which would try again.
class Mesh final : public Connector {
 public:
  /// A listener serves one mesh after another. Throws IoError where there is no epoll to be had.
  Mesh(std::shared_ptr<const DataListener> listener, KeyView key, MeshOptions options);
  ~Mesh() override;

  /// Blocks until this rank is connected with `ranks`: it connects to those below it and accepts those above.
  /// Peers that do not listen yet are tried again. Errors: kTimeout with the ranks that are missing, kRefused
  /// where a peer refused this rank or did not prove itself, kAborted.
  Result<std::map<int, PeerConnection>> meet(const std::vector<int>& ranks, const WaitOptions& wait);

  /// Who was turned away and why; the first 32.
  const std::vector<std::string>& refused() const { return refused_; }

  void connect(int rank) override;
  Result<std::map<int, PeerConnection>> step() override;
  int fd() const override { return sockets_.get(); }
  bool is_connecting() const override { return !pending_.empty() || !dial_at_.empty(); }

 private:
  struct Pending;
  enum class Step { kWaits, kDone, kGone, kFailed };

  void watch(int fd, std::uint32_t events, Pending* pending);
  void go_on();
  void dial(int rank, Instant now);
  bool is_dialing(int rank) const;
  bool has_or_makes(int rank) const { return connected_.contains(rank) || is_dialing(rank); }
  void accept_all(Instant now);
  void go_on(Pending& pending, Instant now);
  void finish(Pending& pending);
  void refuse(const Pending& pending, const std::string& why);
  Step turn_away(Pending& pending, const ErrorInfo& error);
  Step gone(const Pending& pending, int error);
  Step fail(ErrorInfo error);
  Step advance(Pending& pending);
  Step advance_connector(Pending& pending);
  Step advance_acceptor(Pending& pending);

  const std::shared_ptr<const DataListener> listener_;
  std::array<std::byte, 32> key_{};
  const MeshOptions options_;
  MonotonicClock clock_;
  SystemRandom random_;
  UniqueFd sockets_;  ///< epoll, of the listener and what is pending
  bool meets_ = false;
  std::list<Pending> pending_;
  std::map<int, Instant> dial_at_;  ///< ranks to connect to, and when
  std::set<int> connected_;
  std::map<int, PeerConnection> made_;  ///< since the last step()
  std::vector<std::string> refused_;
  std::optional<ErrorInfo> failure_;
};

}  // namespace troupe::collectives
