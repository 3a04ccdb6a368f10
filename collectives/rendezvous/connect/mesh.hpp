/// The connections between ranks of different machines: a listener a rank, and the mesh that they form.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "collectives/rendezvous/connect/handshake.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::collectives {

/// Connections that may be in the middle of a handshake; with one more the oldest goes.
inline constexpr std::size_t kMaxPendingHandshakes = 64;

/// A listening socket, open before its address is told to anybody.
class DataListener {
 public:
  /// `at`: a numeric host (no name: looking one up has no deadline); port 0 takes a free one. Errors:
  /// kBadConfig for a name, kIo for an address in use or not of this machine.
  static Result<DataListener> bind(const Endpoint& at);
  /// Where it listens, with the port that was taken.
  const Endpoint& endpoint() const { return endpoint_; }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  Endpoint endpoint_;
};

struct MeshOptions {
  HandshakeIdentity self;
  /// Where the ranks of other machines listen. This rank connects to those below it and accepts those above
  /// it.
  std::map<int, Endpoint> peers;
  /// For all connections together.
  Duration timeout = std::chrono::seconds(30);
  /// For one handshake: what takes longer is dropped.
  Duration handshake_timeout = std::chrono::seconds(5);
  /// True ends the wait with CollectiveAborted. Asked whenever something happens, and every 50 ms without
  /// `abort_fd`.
  std::function<bool()> aborted = [] { return false; };
  /// Readable once `aborted` is true; -1: there is no such descriptor.
  int abort_fd = -1;
};

struct Mesh {
  std::map<int, UniqueFd> sockets;   ///< by rank; what NativeGroupOptions::remote takes
  std::map<int, SessionKeys> keys;   ///< by rank, where the two encrypt
  std::vector<std::string> refused;  ///< who was turned away and why; the first 32
};

/// Connects with every peer, with proof of the job's key, the generation and the rank on both sides. Noise,
/// wrong keys, stale generations and slow peers are turned away without disturbing the others. Peers that do
/// not listen yet, or hang up before they said anything, are tried again. Blocks. Errors: kTimeout with the
/// ranks that are missing, kRefused where a peer refused this rank or did not prove itself, kAborted.
Result<Mesh> connect_mesh(const DataListener& listener, KeyView key, const MeshOptions& options);

}  // namespace troupe::collectives
