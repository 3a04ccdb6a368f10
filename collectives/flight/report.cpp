#include <algorithm>

#include "collectives/flight/analysis.hpp"
#include "collectives/flight/rank_dump.hpp"
#include "runtime/core/count.hpp"

namespace troupe::collectives::flight {
namespace {

std::string cell_of(const RankDump& record, std::uint64_t sequence) {
  if (const Operation* op = record.at(sequence); op != nullptr)
    return to_string(op->call) + " " + std::string(name_of(op->state));
  return sequence < record.first_kept() ? "forgotten" : "-";
}

std::string table_text(const Report& report) {
  if (report.table.empty() || report.table.front().cells.empty()) return {};
  const std::size_t rows = report.table.front().cells.size();
  std::vector<std::vector<std::string>> columns(1);
  columns[0].emplace_back();
  for (std::size_t i = 0; i < rows; ++i) columns[0].push_back("#" + std::to_string(report.first_row + i));
  for (const TableColumn& column : report.table) {
    columns.emplace_back();
    columns.back().push_back(name_ranks(column.ranks));
    columns.back().insert(columns.back().end(), column.cells.begin(), column.cells.end());
  }
  std::string text;
  for (std::size_t row = 0; row <= rows; ++row) {
    std::string line = " ";
    for (std::size_t c = 0; c < columns.size(); ++c) {
      std::size_t width = 0;
      for (const auto& cell : columns[c]) width = std::max(width, cell.size());
      line += " " + columns[c][row];
      if (c + 1 < columns.size()) line.append(width - columns[c][row].size() + 1, ' ');
    }
    text += line + "\n";
  }
  return text;
}

/// How far the ranks went together.
std::string agreement(const Report& report) {
  if (report.agreed_through == 0) return "no collective that all of them called alike";
  const bool all = report.ranks.size() == static_cast<std::size_t>(report.size);
  std::string text = all ? "all ranks" : name_ranks(report.ranks);
  text += report.ranks.size() == 1 ? " came to #" : " agree through #";
  text += std::to_string(report.agreed_through);
  if (report.compared_from > 1) text += " (compared from #" + std::to_string(report.compared_from) + ")";
  return text;
}

}  // namespace

void fill_table(Report& report, const std::vector<RankDump>& records, std::uint64_t last_row,
                std::size_t rows) {
  const std::uint64_t count = std::min<std::uint64_t>(rows, last_row);
  report.first_row = last_row - count + 1;
  for (const RankDump& record : records) {
    TableColumn column;
    for (std::uint64_t s = report.first_row; s <= last_row; ++s) column.cells.push_back(cell_of(record, s));
    auto same = std::find_if(report.table.begin(), report.table.end(),
                             [&](const TableColumn& c) { return c.cells == column.cells; });
    if (same == report.table.end()) same = report.table.insert(report.table.end(), std::move(column));
    same->ranks.push_back(record.dump.rank);
  }
}

std::string to_line(const Report& report) {
  std::string text = report.group + " " + to_string(report.generation) + ": ";
  if (report.findings.empty()) return text + agreement(report);
  const Finding& first = report.findings.front();
  const std::string who = name_ranks(first.ranks), where = "#" + std::to_string(first.sequence);
  switch (first.kind) {
    case FindingKind::kMismatch:
      return text + who + " called something else at " + where;
    case FindingKind::kMissing:
      return text + who + " never reached " + where;
    case FindingKind::kHeldUp:
      return text + who + " never waited for " + where;
    case FindingKind::kNoDump:
      return text + "no dump of " + who;
  }
  return text;
}

std::string to_text(const Report& report) {
  std::string text = report.group + " generation " + to_string(report.generation) + ", " +
                     count_of(report.size, "rank") + ", " + report.backend + "\n";
  text += "  " + agreement(report) + "\n";
  for (const Finding& finding : report.findings) {
    text += "! " + std::string(kFindingKindNames[static_cast<std::size_t>(finding.kind)]) + ": " +
            finding.text + "\n";
    for (const std::string& detail : finding.details) text += "    " + detail + "\n";
  }
  for (const std::string& note : report.notes) text += "  " + note + "\n";
  if (const std::string table = table_text(report); !table.empty()) text += "\n" + table;
  return text;
}

}  // namespace troupe::collectives::flight
