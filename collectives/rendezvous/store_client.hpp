/// A rank's connection to the store of its job.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "collectives/rendezvous/store_server.hpp"

namespace troupe::collectives {

/// The why of Unavailable where the rank that served the store left of its own will, and did not die.
inline constexpr std::string_view kServerLeft = "the rank that served it has left";

class StoreClient final : public Store {
 public:
  struct Options {
    Endpoint at;  ///< numeric
    JobKey key{};
    int rank = 1;
    int world_size = 2;
    int server = 0;                              ///< the rank that serves it
    Duration timeout = std::chrono::seconds(5);  ///< for connection and handshake
  };
  /// Errors: kUnavailable where nobody listens (yet), kTimeout, kRefused where the two do not belong
  /// together; then `verdict`, if given, says why.
  static Result<std::unique_ptr<StoreClient>> connect(const Options& options, Verdict* verdict = nullptr);
  /// Over a session that is there already (StoreServer::local_session).
  explicit StoreClient(StoreSession session);

  void set(const std::string& key, std::string_view value) override;
  std::string set_once(const std::string& key, std::string_view value) override;
  std::optional<std::string> find(const std::string& key, Duration wait = Duration::zero()) override;
  std::int64_t add(const std::string& key, std::int64_t by) override;
  std::int64_t erase(const std::string& prefix) override;

  /// Speaks for its rank from here on, until leave(); when the connection ends before, the rank is lost. kOk,
  /// kTaken or kOver (store_wire.hpp).
  StoreResponse join(const std::string& who);
  /// Takes back join. Never throws; returns when the store knows, or after `limit`.
  void leave(Duration limit);

  /// As find, in one request however long it is: nobody else gets to ask meanwhile.
  std::optional<std::string> find_undisturbed(const std::string& key, Duration wait);

  /// Ends the call that is in progress, and every later one, with Unavailable. From any thread.
  void interrupt();
  int fd() const { return session_.fd.get(); }

 private:
  StoreResponse ask(const StoreRequest& request, Duration limit);
  StoreResponse exchange(const StoreRequest& request, Duration limit);

  StoreSession session_;
  std::mutex mutex_;  ///< one request at a time
  SecretSealer sealer_;
  SecretOpener opener_;
  std::string broken_;  ///< why there is no store any more, or empty
};

}  // namespace troupe::collectives
