#include "tests/simulation/saves.hpp"

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

std::uint64_t SavedCounts::heads_lost() const {
  return static_cast<std::uint64_t>(cluster_.head_starts - (cluster_.head != nullptr ? 1 : 0));
}

/// What a head and a node both had, and the other node not yet, is lost with both of them.
void SavedCounts::check(const Actor& actor, const Life& life, const Life& next) const {
  if (next.in == nullptr || next.began_with >= life.last.count) return;
  const bool is_node_gone =
      life.in == nullptr || !life.in->node->alive || cluster_.declared_dead.contains(life.in->node->info.id);
  if (actor.is_detached && is_node_gone && heads_lost() > life.last.heads_lost) return;
  cluster_.world.violation("a life of an actor begins with " + std::to_string(next.began_with) +
                           ", and an answer of the one before knew of " + std::to_string(life.last.count));
}

void SavedCounts::begins(std::uint64_t number, std::uint64_t life, std::uint64_t count, const Hosted& in) {
  Actor& actor = actors_[number];
  Life& next = actor.lives[life];
  next.in = &in;
  next.began_with = count;
  begun_with_state += count > 0 ? 1 : 0;
  for (const auto& [before, its] : actor.lives) {
    if (before < life) check(actor, its, next);
  }
}

void SavedCounts::delivered(const Known& known) {
  Actor& actor = actors_[known.number];
  Life& life = actor.lives[known.life];
  if (known.count < life.last.count) return;
  life.last = known;
  for (const auto& [after, its] : actor.lives) {
    if (after > known.life) check(actor, life, its);
  }
}

}  // namespace troupe::sim
