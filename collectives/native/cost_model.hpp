/// Which algorithm a collective takes. Pure, and of nothing but what every rank knows (what it called, and
/// how the ranks are laid out), so that all ranks choose the same.
///
///   one-shot  every rank leaves a copy of its input where the others find it, and each takes or adds up what
///             it needs: one meeting, and nobody waits for readers. What is reduced is added up in whole by
///             every rank that gets it.
///   exchange  inputs are read where they lie; each rank adds up a slice and stores it to all who get it: two
///             meetings (all have arrived, all have read), the fewest bytes.
///
/// Both add in the order of the tree, so the bits are the same. Between hosts, what one has for the others
/// goes one of three ways; docs/collectives/native.md and between-hosts.md derive the costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "collectives/op.hpp"

namespace troupe::collectives {

/// How the ranks of a group are laid out, as far as costs and rounds depend on it.
struct Shape {
  int ranks = 1;
  int hosts = 1;
  int cores = 0;                  ///< of the one host, alike on all its ranks; 0: of no account
  std::size_t members = 1;        ///< the most ranks on a host
  std::size_t nodes = 1;          ///< the most partial sums that a host has for others
  std::size_t landing_bytes = 0;  ///< the most that a host sends another in a round
};

enum class Algorithm : std::uint8_t { kExchange, kOneShot };

/// How what one host has for others gets there.
enum class Route : std::uint8_t {
  kDirect,       ///< from each to each
  kDisseminate,  ///< in log2(hosts) steps, in each of which a host passes on what it has (Bruck)
  kChain,        ///< from host to host, so that each sends it once
};

/// What an algorithm costs the busiest rank; the time is that of the busiest core.
struct Cost {
  int meetings = 0;
  double copied = 0;  ///< bytes of its own that it leaves for others
  double moved = 0;   ///< bytes that it reads from others, or writes to them
  double microseconds = 0;
};

struct Choice {
  Algorithm algorithm = Algorithm::kExchange;
  Route route = Route::kDirect;
  Cost one_shot;
  Cost exchange;
};

Choice choose_algorithm(const Op& op, const Shape& shape);

/// "one-shot: 1.2 us (1 meeting, 4096 B copied, 4096 B moved); exchange: 1.8 us (...)", the chosen one first;
/// between hosts the route is behind it.
std::string to_string(const Choice& choice);

}  // namespace troupe::collectives
