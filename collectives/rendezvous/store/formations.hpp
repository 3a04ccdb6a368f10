/// How groups come about at a store: ranks enter, each makes its part of the group, and all of them have it
/// or none.
///
///   enter   a rank says who the members are and leaves a value. When all are there, each gets all values and
///           a number that no other formation has.
///   ready   a rank has its part. When all are ready the group is formed, and each is told.
///   fail    a rank could not. So does one that dies, leaves, is too late or names other members: all are
///           told why, at once, and those that come later when they come.
///
/// Of survivors (rebuild), the members are those of the list that are there once each of the others is known
/// to be gone.
///
/// Invariant: a formation is kept until each of its ranks is through with it (ready with all others, or told
/// and back from what it did) or gone. Then nothing is left of it.
///
/// Pure: requests and times in, responses out.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/rendezvous/store/store_wire.hpp"

namespace troupe::collectives {

using StoreClientId = std::uint64_t;  ///< a connection
struct StoreReply {
  StoreClientId to = 0;
  StoreResponse response;
};
using StoreReplies = std::vector<StoreReply>;

/// Behind the key of a formation: what its ranks set while they form the group. Erased with it.
inline constexpr const char* kFormationKeys = "form/";

/// How a rank went.
struct Departure {
  bool died = false;
  std::string who;
};
/// "rank 3 (pid 7 on host) died".
std::string to_string(int rank, const Departure& departure);

enum class FormationFailure : std::uint8_t {
  kGaveUp = 0,   ///< a rank could not
  kGone = 1,     ///< a rank died or left
  kTimeout = 2,  ///< ranks did not come
  kDiffers = 3,  ///< ranks entered with different lists
};

/// Not thread-safe.
class Formations {
 public:
  /// Who sends a request, and where its response goes.
  struct From {
    StoreClientId client = 0;
    int rank = 0;
  };

  /// `incarnation`: of the numbers of all groups of this store.
  explicit Formations(std::uint32_t incarnation) : incarnation_(incarnation) {}

  void enter(const From& from, const StoreRequest& request, const Entry& entry, Instant now,
             StoreReplies& replies);
  void more(const From& from, const StoreRequest& request, StoreReplies& replies) const;
  void ready(const From& from, const StoreRequest& request, Instant now, StoreReplies& replies);
  void fail(const From& from, const StoreRequest& request, StoreReplies& replies);
  /// For nobody who asked: the formation need not be waited for, whether it is there or not.
  void give_up(const std::string& key, const std::string& why, StoreReplies& replies);
  /// A rank went, for good.
  void on_gone(int rank, const Departure& departure, StoreReplies& replies);
  /// `hint`: behind who is missing.
  void on_time(Instant now, const std::string& hint, StoreReplies& replies);
  std::optional<Instant> next_deadline() const;

  /// The formations that ended since this was asked last: nobody needs what is kept for them.
  std::vector<std::string> take_ended() { return std::exchange(ended_, {}); }
  std::size_t bytes() const { return bytes_; }
  std::size_t size() const { return formations_.size(); }

 private:
  enum class State : std::uint8_t {
    kAway,   ///< did not come yet
    kIn,     ///< waits for the others, or makes its part
    kReady,  ///< waits for the others
    kOut,    ///< needs the formation no more
  };
  struct Member {
    State state = State::kAway;
    StoreClientId client = 0;
    std::uint32_t id = 0;  ///< of its request to enter
    std::uint32_t ready_id = 0;
    std::string value;
    Instant deadline{0};  ///< of what it waits for; 0: it does not wait
    std::uint32_t wait_ms = 0;
  };
  struct Formation {
    bool survivors = false;
    bool gathered = false;
    std::uint32_t number = 0;
    std::vector<int> ranks;         ///< the list; empty: nobody came yet
    int first = 0;                  ///< whose list it is
    std::map<int, Member> members;  ///< those of the list that are not gone; of all lists that came
    std::optional<std::pair<FormationFailure, std::string>> failure;
  };
  using Place = std::map<std::string, Formation>::iterator;

  void take_list(Place place, int first, const Entry& entry, StoreReplies& replies);
  void differ(Place place, const From& from, const StoreRequest& request, const Entry& entry,
              StoreReplies& replies);
  void wait(Place place, int rank, Member& member, std::uint32_t wait_ms, Instant now);
  void stop_waiting(Place place, int rank, Member& member);
  void leave(Place place, int rank, Member& member);
  void look(Place place, StoreReplies& replies);
  void gather(Place place, StoreReplies& replies);
  void end_with(Place place, FormationFailure how, const std::string& why, StoreReplies& replies);
  void end(Place place);
  StoreResponse chunk(const Formation& formation, std::uint32_t id, std::size_t first) const;
  static std::string missing(const Formation& formation, std::uint32_t wait_ms);
  static StoreResponse failed(const Formation& formation, std::uint32_t id);

  const std::uint32_t incarnation_;
  std::uint32_t numbers_ = 0;
  std::map<std::string, Formation> formations_;
  std::set<std::tuple<Instant, std::string, int>> deadlines_;  ///< when, which formation, whose
  std::map<int, Departure> gone_;
  std::vector<std::string> ended_;
  std::size_t bytes_ = 0;  ///< of values
};

}  // namespace troupe::collectives
