/// A dump: what one rank's flight recorder remembered at one moment, as text that people can read too. The
/// format is in this folder's README; encode and parse are pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/op.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/core/result.hpp"

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
  /// Its sequence number is a collective's; of a message 0.
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

constexpr std::size_t kMaxDumpBytes = std::size_t{16} << 20;  ///< larger files are refused

/// Times are nanoseconds since 1970, so that dumps of several machines can be laid side by side.
struct Dump {
  std::string group;  ///< the name that the program gave; unique to a run where the launcher has one
  Generation generation;
  std::string backend;
  int rank = 0;
  int size = 1;
  std::string host;
  int pid = 0;
  std::int64_t formed_ns = 0;         ///< when the recorder was made
  std::int64_t dumped_ns = 0;         ///< when the dump was
  std::int64_t monotonic_ns = 0;      ///< this machine's monotonic clock at dumped_ns
  std::string reason;                 ///< why it was written
  std::uint64_t launched = 0;         ///< operations so far; the last of them are in `operations`
  std::uint64_t collectives = 0;      ///< and how many of them were collectives, less those refused
  std::vector<Operation> operations;  ///< ascending by number
};

std::string encode(const Dump& dump);

/// The dump in `text`; `file` names it in errors. Errors: kBadInput, with the line. A dump that is cut short
/// is refused: what is missing at its end would look like a rank that stopped.
Result<Dump> parse_dump(std::string_view text, const std::string& file);

}  // namespace troupe::collectives::flight
