/// The store of a job, served over TCP by a thread of one of its ranks: 0 at first, and a successor of its
/// own standby address (succession.cpp).
///
/// Who connects has 5 s to prove that it has the job's key, and sends nothing but the fixed messages of the
/// handshake until then. Noise and strangers are turned away without disturbing anybody; of more than 1,024
/// in the middle of a handshake the oldest goes. The log has ten lines a minute of them at most.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "collectives/rendezvous/mesh.hpp"
#include "collectives/rendezvous/store_wire.hpp"

namespace troupe::collectives {

using JobKey = std::array<std::byte, 32>;

/// One end of a session: the socket and the keys for its two directions.
struct StoreSession {
  UniqueFd fd;
  SessionKey send_key{};
  SessionKey receive_key{};
};

/// How the first group of a job came about (world.hpp). The server sets it to "failed WHY" when a rank with
/// the job's key says another world size: the others need not wait for it.
inline constexpr const char* kWorldPrefix = "world/";
inline constexpr const char* kWorldOutcomeKey = "world/form/outcome";

class StoreServer {
 public:
  /// Of the rank that serves: one for keys, one that watches, and one each for threads that form groups at
  /// once.
  static constexpr int kLocalSessions = 2 + 3;
  static constexpr std::size_t kMaxClients = 65'536;
  static constexpr std::size_t kMaxPending = 1'024;

  /// Serves at `listener` until it is destroyed, to ranks above `rank`, which serves it. `world_size`:
  /// clients that say another one are refused. Errors: kIo.
  static Result<std::unique_ptr<StoreServer>> start(DataListener listener, const JobKey& key, int world_size,
                                                    Duration handshake_timeout = std::chrono::seconds(5),
                                                    int rank = 0);
  /// Waits for the ranks that are still there to leave, for no longer than `linger`; then tells those that
  /// wait for something that the store closes.
  void close(Duration linger);
  ~StoreServer();

  /// For the rank that serves: a session that needs no handshake. kLocalSessions can be had.
  StoreSession local_session();
  /// Who was turned away so far, as a part of a sentence: "; the store turned away 2 connections, the last
  /// from 10.0.0.7: ..."; empty: nobody.
  std::string strangers() const;
  const Endpoint& endpoint() const;

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace troupe::collectives
