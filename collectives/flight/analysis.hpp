/// Lines up the dumps of a group's ranks and says who diverged, where. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/flight/dump.hpp"

namespace troupe::collectives::flight {

enum class FindingKind : std::uint8_t {
  kMismatch,  ///< ranks called different things at one sequence number
  kMissing,   ///< ranks never came to an operation that others are in
  kHeldUp,    ///< ranks launched an operation and never waited for it, while others did, for long
  kNoDump     ///< nothing is known of ranks
};
constexpr std::array<std::string_view, 4> kFindingKindNames{"mismatch", "missing", "held up", "no dump"};

struct Finding {
  FindingKind kind = FindingKind::kMismatch;
  std::uint64_t sequence = 0;        ///< of the collective; 0: none
  std::vector<int> ranks;            ///< who diverged: the fewer where two calls differ
  std::string text;                  ///< a sentence
  std::vector<std::string> details;  ///< what those ranks were at, a sentence each
};

/// Ranks whose rows are the same.
struct TableColumn {
  std::vector<int> ranks;
  std::vector<std::string> cells;  ///< one a row
};

/// What there is to say about one group in one generation.
struct Report {
  std::string group;
  Generation generation;
  std::string backend;
  int size = 0;
  std::vector<int> ranks;            ///< whose dumps were looked at, ascending
  std::int64_t newest_ns = 0;        ///< when the last of them was dumped
  std::uint64_t compared_from = 1;   ///< the first collective that every ring still held
  std::uint64_t agreed_through = 0;  ///< the last collective that all of `ranks` called alike; 0: none
  std::vector<Finding> findings;     ///< empty: nobody diverged
  std::vector<std::string> notes;    ///< why they dumped, what failed, what was left out
  std::uint64_t first_row = 0;       ///< the sequence number of the table's first row
  std::vector<TableColumn> table;    ///< by lowest rank
};

/// One report a group and generation, the newest first. Two dumps of one rank: the later one counts. A dump
/// that was taken a minute and more before another rank of its group was formed is of an earlier run with the
/// same name, and left out with a note. `rows`: of the table.
std::vector<Report> analyse(std::vector<Dump> dumps, std::size_t rows = 6);

/// For people: findings, notes and the table.
std::string to_text(const Report& report);
/// "run-1f 1.3: ranks diverged at #18", in one line.
std::string to_line(const Report& report);

}  // namespace troupe::collectives::flight
