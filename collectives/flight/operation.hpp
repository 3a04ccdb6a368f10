/// What a rank did, as the flight recorder remembers it: one call of a process group, and what became of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "collectives/op_kind.hpp"
#include "collectives/types.hpp"

namespace troupe::collectives::flight {

enum class State : std::uint8_t {
  kLaunched,   ///< nobody has waited for it yet
  kWaiting,    ///< somebody waits, or waited, for it
  kCompleted,  ///< its result was in place
  kFailed,     ///< waiting for it threw: the group is aborted, or timed out
  kRefused     ///< the launch threw: the group never took it, and its number was given again
};
constexpr std::array<std::string_view, 5> kStateNames{"launched", "waiting", "completed", "failed",
                                                      "refused"};

constexpr std::string_view name_of(State state) {
  return kStateNames[static_cast<std::size_t>(state)];
}
/// A call with its arguments. A message has one partner and is numbered with it. For a collective equal on
/// every rank, so two that differ are a mismatch.
struct What {
  OpKind call = OpKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  bool exact = true;
  DType dtype = DType::kFloat32;
  std::int32_t at = 0;      ///< the root, the partner of a message, or the index of a tree's buffer
  std::uint32_t tag = 0;    ///< of a message
  std::uint64_t count = 0;  ///< elements: of the smaller buffer where there are two
  bool operator==(const What&) const = default;
};

/// "all_reduce(sum, 100 x f32)".
std::string to_string(const What& what);

struct Operation {
  std::uint64_t number = 0;  ///< counts everything that this rank launched in the group, from 1
  /// Of a collective: its number among the group's collectives, from 1. Of a message: its number among those
  /// with this direction, partner and tag, from 1; 0 when there were too many such to count.
  std::uint64_t sequence = 0;
  What what;
  State state = State::kLaunched;
  std::int64_t launched_ns = 0;  ///< in the recorder: monotonic; in a dump: since 1970
  std::int64_t took_ns = 0;      ///< until it completed or failed; 0 before
  std::string error;             ///< what it threw, at most kMaxErrorBytes
};

/// Longer texts of errors are cut.
constexpr std::size_t kMaxErrorBytes = 400;

/// Launched, and neither completed, failed nor refused.
constexpr bool is_open(State state) {
  return state == State::kLaunched || state == State::kWaiting;
}

}  // namespace troupe::collectives::flight
