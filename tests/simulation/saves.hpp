/// What actors that save a count must be true to over their lives: a life begins with what the last answer
/// that was delivered knew, or later, never older.
#pragma once

#include <cstdint>
#include <map>

#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;
struct Hosted;

/// What an answer of an actor knows.
struct Known {
  std::uint64_t number = 0;      ///< which it is
  std::uint64_t life = 0;        ///< from 1 on
  std::uint64_t count = 0;       ///< of the calls that it has carried out, in all of its lives
  std::uint64_t heads_lost = 0;  ///< that had died when it answered
};

class SavedCounts {
 public:
  explicit SavedCounts(Cluster& cluster) : cluster_(cluster) {}

  /// It is kept by head and nodes, and not by whoever spawned it.
  void detached(std::uint64_t number) { actors_[number].is_detached = true; }
  /// A life carries out its first call, and has this count then.
  void begins(std::uint64_t number, std::uint64_t life, std::uint64_t count, const Hosted& in);
  /// An answer has reached somebody.
  void delivered(const Known& known);
  std::uint64_t heads_lost() const;

  long begun_with_state = 0;  ///< lives that went on from a count

 private:
  struct Life {
    const Hosted* in = nullptr;  ///< null: it has carried out nothing so far
    std::uint64_t began_with = 0;
    Known last{};  ///< of its answers that were delivered, the one that knew most
  };
  struct Actor {
    bool is_detached = false;
    std::map<std::uint64_t, Life> lives{};
  };
  void check(const Actor& actor, const Life& life, const Life& next) const;
  Cluster& cluster_;
  std::map<std::uint64_t, Actor> actors_;
};

}  // namespace troupe::sim
