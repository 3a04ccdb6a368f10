/// The store's decisions: keys, who waits for them, and which ranks are there.
///
/// A rank joins once in the life of a store. When it goes, a key "event/N" (N from 0) is set to "left RANK
/// WHO" or "lost RANK WHO": whoever waits for the events, one after the other, knows of every death.
///
/// Pure: requests and times in, responses out. store_server.hpp has the sockets.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/rendezvous/store_wire.hpp"

namespace troupe::collectives {

/// Not thread-safe.
class StoreCore {
 public:
  using Client = std::uint64_t;  ///< a connection
  struct Reply {
    Client to = 0;
    StoreResponse response;
  };
  using Replies = std::vector<Reply>;

  /// `rank`: whose connection it is, as it proved. REQUIRES: !waiting(client).
  Replies on_request(Client client, int rank, const StoreRequest& request, Instant now);
  /// Sets `key` unless it is set, for nobody who asked.
  Replies set_once(const std::string& key, const std::string& value);
  /// Whether the client has a request that was not answered yet.
  bool waiting(Client client) const { return waits_.contains(client); }
  /// The connection ended. A rank that joined on it and did not leave is lost.
  Replies on_gone(Client client);
  Replies on_time(Instant now);
  /// When on_time has something to do.
  std::optional<Instant> next_deadline() const;
  /// Of keys and values.
  std::size_t bytes() const { return bytes_; }
  /// How many ranks joined and did not go yet.
  std::size_t present() const { return present_; }

 private:
  struct Wait {
    std::string key;
    Instant deadline{0};
  };
  struct Member {
    Client client = 0;
    bool here = true;
    std::string who;
  };

  void put(const std::string& key, std::string value, Replies& replies);
  bool fits(const std::string& key, std::size_t value_bytes) const;
  void forget_wait(Client client);
  void go(int rank, const char* how, Replies& replies);
  StoreResponse join(Client client, int rank, const std::string& who);
  StoreResponse add(const StoreRequest& request, Replies& replies);
  std::int64_t erase(const std::string& prefix);

  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
  std::map<Client, Wait> waits_;
  std::map<std::string, std::vector<Client>> waiters_;  ///< by key
  std::set<std::pair<Instant, Client>> deadlines_;
  std::map<int, Member> members_;  ///< by rank
  std::size_t present_ = 0;
  std::uint64_t events_ = 0;
};

}  // namespace troupe::collectives
