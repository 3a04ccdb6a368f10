/// A rank's connection to the store of its job: one for all its threads, and for what the store says unasked.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "collectives/rendezvous/store/formations.hpp"
#include "collectives/rendezvous/store/store_server.hpp"

namespace troupe::collectives {

/// The why of Unavailable where the rank that served the store left of its own will, and did not die.
inline constexpr std::string_view kServerLeft = "the rank that served it has left";

/// Requests of several threads are under way at once. Whoever waits for an answer reads the connection if
/// nobody else does, and hands the others theirs: so a thread that was called while another waits can ask,
/// too.
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
  /// Over a Unix socket where the server is on this host, else TCP.
  /// Errors: kUnavailable where nobody listens (yet), kTimeout, kRefused where the two do not belong
  /// together; then `verdict`, if given, says why. `refused`, if given: as of dial().
  static Result<std::unique_ptr<StoreClient>> connect(const Options& options, Verdict* verdict = nullptr,
                                                      bool* refused = nullptr);
  /// Over a session that is there already (StoreServer::local_session).
  explicit StoreClient(StoreSession session);

  void set(const std::string& key, std::string_view value) override;
  std::optional<std::string> find(const std::string& key, Duration wait = Duration::zero()) override;
  std::int64_t erase(const std::string& prefix) override;

  /// Speaks for its rank from here on, until leave(); when the connection ends before, the rank is lost. kOk,
  /// kTaken or kOver (store_wire.hpp).
  StoreResponse join(const std::string& who);
  /// Takes back join. Never throws; returns when the store knows, or after `limit`.
  void leave(Duration limit);
  /// The next rank that went, once this one has joined. Waits for it. Throws Unavailable.
  std::pair<int, Departure> next_departure();

  /// A request under way, to which several answers may come. Used by one thread at a time; ends before the
  /// client.
  class Call {
   public:
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    /// Waits for the next answer; empty: none came in time, or `unless` has one. Throws Unavailable.
    std::optional<StoreResponse> next(Duration limit, const Call* unless = nullptr);
    /// Whether an answer is there, or none will come. Does not wait.
    bool has_news() const;
    /// Readable once has_news(), from the first call on.
    int news_fd();

   private:
    friend class StoreClient;
    Call(StoreClient& client, std::uint32_t id) : client_(client), id_(id) {}
    void notify();

    StoreClient& client_;
    const std::uint32_t id_;
    std::deque<StoreResponse> answers_;
    std::condition_variable changed_;
    UniqueFd news_;
  };
  /// Sends a request. Throws Unavailable, BadInput for a key or value that is too long.
  std::unique_ptr<Call> begin(StoreRequest request);
  /// The answer to a request; the store has `limit` longer than the request waits. Throws Unavailable.
  StoreResponse ask(StoreRequest request, Duration limit, const Call* unless = nullptr);

  /// Ends the calls that are in progress, and every later one, with Unavailable. From any thread.
  void interrupt();
  int fd() const { return session_.fd.get(); }

 private:
  StoreResponse checked(StoreRequest request);
  template <class Done>
  void await(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Instant until, Done done);
  void read_until(std::unique_lock<std::mutex>& lock, Instant until);
  void take(std::span<const std::byte> bytes);
  void fail(std::string why);
  void notify_all();

  StoreSession session_;
  std::mutex send_mutex_;  ///< of the sealer, and of what it sealed until it is sent
  SecretSealer sealer_;
  mutable std::mutex mutex_;  ///< of what follows
  SecretOpener opener_;
  bool reading_ = false;                  ///< a thread reads, without the lock
  std::string broken_;                    ///< why there is no store any more, or empty
  std::map<std::uint32_t, Call*> calls_;  ///< by id
  std::uint32_t next_id_ = 1;
  std::deque<std::pair<int, Departure>> departures_;
  std::condition_variable departed_;
};

}  // namespace troupe::collectives
