/// Which algorithm a collective takes. Pure, and of nothing but what every rank knows (what it called, how
/// many ranks there are, whether all are on one machine), so that all ranks choose the same.
///
///   one-shot  every rank leaves a copy of its input where the others find it, and each takes or adds up what
///             it needs: one meeting, and nobody waits for readers. What is reduced is added up in whole by
///             every rank that gets it.
///   exchange  inputs are read where they lie; each rank adds up a slice and stores it to all who get it: two
///             meetings (all have arrived, all have read), the fewest bytes.
///
/// Both add in the order of the tree, so the bits are the same. docs/collectives/native.md derives the costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "collectives/op.hpp"

namespace troupe::collectives {

/// What a rank sends of a collective before it knows that the other has launched it. At most 16 of them wait
/// at a receiver for each rank of another machine (engine_remote.cpp).
inline constexpr std::size_t kEagerPartials = 64 * 1024;

enum class Algorithm : std::uint8_t { kExchange, kOneShot };

/// What an algorithm costs the busiest rank.
struct Cost {
  int meetings = 0;
  double copied = 0;  ///< bytes of its own that it leaves for others
  double moved = 0;   ///< bytes that it reads from others, or writes to them
  double microseconds = 0;
};

struct Choice {
  Algorithm algorithm = Algorithm::kExchange;
  Cost one_shot;
  Cost exchange;
};

/// `one_machine`: every rank of the group is on this machine.
Choice choose_algorithm(const Op& op, int ranks, bool one_machine);

/// "one-shot: 1.2 us (1 meeting, 4096 B copied, 4096 B moved); exchange: 1.8 us (...)", the chosen one first.
std::string to_string(const Choice& choice);

}  // namespace troupe::collectives
