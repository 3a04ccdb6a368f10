/// One rank's dump, ready to be laid beside the others'. What the parts of the analysis share.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "collectives/flight/analysis.hpp"
#include "collectives/texts.hpp"

namespace troupe::collectives::flight {

struct RankDump {
  Dump dump;
  std::vector<const Operation*> collectives;  ///< those the group saw, ascending by sequence number

  explicit RankDump(Dump of) : dump(std::move(of)) {
    for (const Operation& op : dump.operations) {
      if (!is_message(op.call.kind) && op.state != State::kRefused) collectives.push_back(&op);
    }
  }
  RankDump(RankDump&&) noexcept = default;  // the operations stay where they are
  RankDump& operator=(RankDump&&) noexcept = default;

  /// The oldest collective that the ring still held.
  std::uint64_t first_kept() const {
    return collectives.empty() ? dump.collectives + 1 : collectives.front()->call.sequence;
  }
  std::uint64_t last() const {
    return std::max(dump.collectives, collectives.empty() ? 0 : collectives.back()->call.sequence);
  }
  /// Null: never launched, or forgotten.
  const Operation* at(std::uint64_t sequence) const {
    const auto found = std::lower_bound(
        collectives.begin(), collectives.end(), sequence,
        [](const Operation* op, std::uint64_t wanted) { return op->call.sequence < wanted; });
    return found != collectives.end() && (*found)->call.sequence == sequence ? *found : nullptr;
  }
  /// How long `op` had been going on when it failed, or at the dump.
  std::int64_t waited_ns(const Operation& op) const {
    if (!is_open(op.state)) return op.took_ns;
    return std::max<std::int64_t>(dump.dumped_ns - op.launched_ns, 0);
  }
};

/// Null: there is none of that rank.
inline const RankDump* record_of(const std::vector<RankDump>& records, int rank) {
  const auto found = std::find_if(records.begin(), records.end(),
                                  [&](const RankDump& record) { return record.dump.rank == rank; });
  return found == records.end() ? nullptr : &*found;
}

/// "12.3 s", "0.25 ms".
inline std::string for_people(std::int64_t ns) {
  char text[32];
  const double seconds = static_cast<double>(ns) / 1e9;
  std::snprintf(text, sizeof text, seconds >= 0.1 ? "%.1f s" : "%.3g ms",
                seconds >= 0.1 ? seconds : seconds * 1e3);
  return text;
}

/// The table of collectives that ends at `last_row`.
void fill_table(Report& report, const std::vector<RankDump>& records, std::uint64_t last_row,
                std::size_t rows);

}  // namespace troupe::collectives::flight
