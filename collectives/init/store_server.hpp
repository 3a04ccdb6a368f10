/// The store of a job, served by rank 0 over TCP on a thread of its own.
///
/// Who connects has 5 s to prove that it has the job's key, and sends nothing but the fixed messages of the
/// handshake until then. Noise and strangers are turned away without disturbing anybody; of more than 1,024
/// in the middle of a handshake the oldest goes.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "collectives/init/store_wire.hpp"
#include "collectives/native/mesh.hpp"

namespace troupe::collectives {

using JobKey = std::array<std::byte, 32>;

/// One end of a session: the socket and the keys for its two directions.
struct StoreSession {
  UniqueFd fd;
  SessionKey send_key{};
  SessionKey receive_key{};
};

class StoreServer {
 public:
  static constexpr std::size_t kMaxClients = 65'536;
  static constexpr std::size_t kMaxPending = 1'024;

  /// Serves at `listener` until it is destroyed. `world_size`: clients that say another one are refused.
  /// Errors: kIo.
  static Result<std::unique_ptr<StoreServer>> start(DataListener listener, const JobKey& key, int world_size,
                                                    Duration handshake_timeout = std::chrono::seconds(5));
  /// Waits for the ranks that are still there to leave, for no longer than `linger`; then tells those that
  /// wait for something that the store closes.
  void close(Duration linger);
  ~StoreServer();

  /// For rank 0 itself: a session that needs no handshake. Two can be had.
  StoreSession local_session();
  const Endpoint& endpoint() const;

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace troupe::collectives
