/// Which of a process's requests go to its node, and when.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "runtime/wire/messages.hpp"

namespace troupe {

/// Pure. Requests of one kind go in the order of their numbers, some at a time; those of another kind never
/// wait for them. Kills wait for none but tens of thousands of others: their process may end before its node
/// has answered any. A request that went ends once: it is answered, or cancelled behind itself.
class RequestQueue {
 public:
  /// What goes to the node now, in order.
  using Messages = std::vector<wire::Control>;

  /// A request that is not answered yet. REQUIRES: the number is new.
  void ask(std::uint64_t number, wire::Control request, Messages& out);
  /// The head has no room yet for this spawn, or for the group that this awaits: others may be asked for
  /// meanwhile.
  void waits(std::uint64_t number, Messages& out);
  void answered(std::uint64_t number, Messages& out);
  /// Nobody wants this spawn, or the answer about a group, any more. It is never asked for, or the node is
  /// told.
  void cancel(std::uint64_t number, Messages& out);
  /// The node is gone.
  void clear();

  static constexpr std::size_t kUnderWay = 256;  ///< of one kind, without those that wait at the head
  static constexpr std::size_t kKills = 65536;   ///< half of what the node keeps while the head is away
  static constexpr std::size_t kSpawns = 16384;  ///< with those that wait there; and of awaited groups
  static constexpr std::size_t kSpawnBytes = std::size_t{64} << 20;  ///< a quarter of what the node takes

 private:
  enum class Kind { kNode, kHead, kSpawn, kAwait, kKill };  ///< by who decides the answer, and when
  struct Request {
    Kind kind = Kind::kNode;
    std::size_t bytes = 0;  ///< of the arguments of a spawn
    bool waits = false;     ///< at the head
  };
  struct Waiting {
    Request request;
    wire::Control message;
  };
  struct Lane {
    std::map<std::uint64_t, Waiting> waiting;
    std::size_t under_way = 0;  ///< without those that wait at the head
    std::size_t parked = 0;     ///< those
    std::size_t bytes = 0;      ///< of both
  };

  static Request request_of(const wire::Control& message);
  static bool has_room(const Lane& lane, const Request& next);
  Lane& lane(Kind kind) { return lanes_[static_cast<std::size_t>(kind)]; }
  void send(std::uint64_t number, Request request, wire::Control message, Messages& out);
  void finish(std::uint64_t number, Messages& out);
  void advance(Lane& lane, Messages& out);

  std::array<Lane, 5> lanes_;
  std::unordered_map<std::uint64_t, Request> sent_;  ///< Invariant: the lanes count what is in here
};

}  // namespace troupe
