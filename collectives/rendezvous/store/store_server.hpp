/// The store of a job, served by a thread of one of its ranks: 0 at first, and a successor at its own standby
/// address (succession.cpp). Ranks of the same user in its network namespace come over an abstract Unix
/// socket, all others over TCP; the handshake is the same.
///
/// Who connects has 5 s to prove that it has the job's key, and sends nothing but the fixed messages of the
/// handshake until then. Noise and strangers are turned away without disturbing anybody; of more than 1,024
/// in the middle of a handshake the oldest goes. The log has 20 lines a minute of them at most.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>

#include "collectives/rendezvous/connect/mesh.hpp"
#include "collectives/rendezvous/store/formations.hpp"
#include "collectives/rendezvous/store/store_wire.hpp"

namespace troupe::collectives {

using JobKey = std::array<std::byte, 32>;

/// One end of a session: the socket and the keys for its two directions.
struct StoreSession {
  UniqueFd fd;
  SessionKey send_key{};
  SessionKey receive_key{};
};

/// The abstract Unix socket of the store that `rank` serves at `at`, for ranks of its host.
std::string store_socket(const JobKey& key, const Endpoint& at, int rank);

/// The formation of a job's first group (formations.hpp), of which all ranks are members. It fails when a
/// rank with the job's key says another world size: the others need not wait for it.
inline constexpr const char* kWorldPrefix = "world/";

class StoreServer {
 public:
  static constexpr std::size_t kMaxClients = 65'536;
  static constexpr std::size_t kMaxPending = 1'024;

  struct Options {
    JobKey key{};
    int world_size = 1;             ///< clients that say another one are refused
    int rank = 0;                   ///< who serves it, to ranks above its own
    std::uint32_t incarnation = 1;  ///< of the generations of all groups that are formed here
    Duration handshake_timeout = std::chrono::seconds(5);
    std::map<int, Departure> gone{};  ///< ranks that went before there was this store
  };
  /// Serves at `listener` until it is destroyed. Errors: kIo.
  static Result<std::unique_ptr<StoreServer>> start(DataListener listener, const Options& options);
  virtual ~StoreServer() = default;
  /// Waits for the ranks that are still there to leave, and for those that have still to be told that their
  /// group failed, for no longer than `linger`; then tells those that wait for something that the store
  /// closes. Without `tells_late`, nobody waits for those that never came.
  virtual void close(Duration linger, bool tells_late = true) = 0;

  /// A rank that lives and has not joined yet may die before it does. When `connection` to it ends before it
  /// has joined, it is gone, as `departure` says; at once, if there is none.
  virtual void look_out(int rank, UniqueFd connection, const Departure& departure) = 0;

  /// For the rank that serves: its session, which needs no handshake. There is one.
  virtual StoreSession local_session() = 0;
  virtual const Endpoint& endpoint() const = 0;
};

}  // namespace troupe::collectives
