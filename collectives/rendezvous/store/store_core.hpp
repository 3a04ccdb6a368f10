/// The store's decisions: keys, who waits for them, and which ranks are there.
///
/// A rank joins once in the life of a store. When it goes, every rank that is there is told, and who joins
/// later is told of all that went before.
///
/// Pure: requests and times in, responses out. store_server.hpp has the sockets.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/rendezvous/store/formations.hpp"

namespace troupe::collectives {

/// Not thread-safe.
class StoreCore {
 public:
  using Client = StoreClientId;
  using Replies = StoreReplies;
  /// Of one client at once. More are refused.
  static constexpr std::size_t kMaxWaits = 1024;

  /// `incarnation`: of the generations of the groups that are formed here.
  explicit StoreCore(std::uint32_t incarnation = 1) : formations_(incarnation) {}

  /// `rank`: whose connection it is, as it proved.
  Replies on_request(Client client, int rank, const StoreRequest& request, Instant now);
  /// A formation need not be waited for.
  Replies give_up(const std::string& key, const std::string& why);
  /// The connection ended. A rank that joined on it and did not leave is lost.
  Replies on_gone(Client client);
  /// A rank that never joined is gone. Nothing of one that joined: its connection says how it went.
  Replies on_lost(int rank, const Departure& departure);
  /// Whether it joined, or is gone.
  bool knows(int rank) const { return members_.contains(rank); }
  /// `hint`: behind who is missing in an error.
  Replies on_time(Instant now, const std::string& hint = {});
  /// When on_time has something to do.
  std::optional<Instant> next_deadline() const;
  /// Of keys and values.
  std::size_t bytes() const { return bytes_ + formations_.bytes(); }
  std::size_t keys() const { return values_.size(); }
  const Formations& formations() const { return formations_; }
  /// How many ranks joined and did not go yet.
  std::size_t present() const { return present_; }
  /// Whether nobody is there, and nobody has still to be told that a formation failed.
  bool is_deserted() const { return present_ == 0 && formations_.size() == 0; }

 private:
  using WaitId = std::pair<Client, std::uint32_t>;  ///< a request of a client
  struct Wait {
    std::string key;
    Instant deadline{};
  };
  struct Member {
    Client client = 0;
    bool here = true;
    Departure departure;  ///< and who it is
  };

  void put(const std::string& key, std::string value, Replies& replies);
  bool fits(const std::string& key, std::size_t value_bytes) const;
  void forget_wait(const WaitId& id);
  void go(int rank, bool died, Replies& replies);
  bool speaks(Client client, int rank) const;
  StoreResponse set(const StoreRequest& request, Replies& replies);
  StoreResponse join(Client client, int rank, const std::string& who, Replies& replies);
  std::optional<StoreResponse> find(Client client, const StoreRequest& request, Instant now);
  void take_part(Client client, int rank, const StoreRequest& request, Instant now, Replies& replies);
  void clear_ended();
  std::int64_t erase(const std::string& prefix);

  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
  std::map<WaitId, Wait> waits_;
  std::map<std::string, std::vector<WaitId>> waiters_;  ///< by key
  std::set<std::pair<Instant, WaitId>> deadlines_;
  std::map<int, Member> members_;  ///< by rank
  std::size_t present_ = 0;
  Formations formations_;
};

}  // namespace troupe::collectives
