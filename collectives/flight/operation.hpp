/// What a rank did, as the flight recorder remembers it: one call of a process group, and what became of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "collectives/op.hpp"

namespace troupe::collectives::flight {

enum class State : std::uint8_t {
  kLaunched,   ///< nobody has waited for it yet
  kWaiting,    ///< somebody waits, or waited, for it
  kEnqueued,   ///< a stream of the GPU waits for it, and nobody on the host
  kCompleted,  ///< its result was in place
  kFailed,     ///< waiting for it threw: the group is aborted, or timed out
  kRefused     ///< the launch threw: the group never took it, and its number was given again
};
constexpr std::array<std::string_view, 6> kStateNames{"launched",  "waiting", "enqueued",
                                                      "completed", "failed",  "refused"};

constexpr std::string_view name_of(State state) {
  return kStateNames[static_cast<std::size_t>(state)];
}

struct Operation {
  std::uint64_t number = 0;  ///< counts everything that this rank launched in the group, from 1
  /// Its sequence number is, of a collective, the group's. Of a message: its number among those with this
  /// direction, partner and tag, from 1; 0 when there were too many such to count.
  Op call;
  State state = State::kLaunched;
  std::int64_t launched_ns = 0;  ///< in the recorder: monotonic; in a dump: since 1970
  std::int64_t took_ns = 0;      ///< until it completed or failed; 0 before
  std::string error;             ///< what it threw, at most kMaxErrorBytes
};

/// Longer texts of errors are cut.
constexpr std::size_t kMaxErrorBytes = 400;

/// Launched, and neither completed, failed nor refused.
constexpr bool is_open(State state) {
  return state <= State::kEnqueued;
}

}  // namespace troupe::collectives::flight
