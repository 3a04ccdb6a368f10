#include "collectives/flight/analysis.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "collectives/flight/rank_dump.hpp"

namespace troupe::collectives::flight {
namespace {

constexpr std::int64_t kEarlierRun_ns = 60'000'000'000;
/// A rank that lags behind others which wait for less than this, and have not failed, did not diverge: dumps
/// of a healthy group are not taken at one instant.
constexpr std::int64_t kStuckAfter_ns = 1'000'000'000;

/// How far a rank had come, and what it was at: "its last is #17 barrier(), completed 12.3 s before its
/// dump".
std::string doing(const RankDump& record) {
  std::string text = "rank " + std::to_string(record.dump.rank) + ": ";
  text += record.last() == 0 ? "it called no collective" : "its last is #" + std::to_string(record.last());
  if (const Operation* last = record.at(record.last()); last != nullptr) {
    text += " " + to_string(last->call);
    const auto since = std::max<std::int64_t>(record.dump.dumped_ns - last->launched_ns - last->took_ns, 0);
    if (last->state == State::kWaiting) {
      text += ", in which it waited for " + for_people(since);
    } else {
      text += ", " + std::string(name_of(last->state)) + " " + for_people(since) + " before its dump";
      if (last->state == State::kLaunched) text += " and not waited for";
    }
  }
  const auto& operations = record.dump.operations;
  if (operations.empty()) return text;
  const Operation& newest = operations.back();
  if (newest.state == State::kRefused)
    text += "; its call of " + to_string(newest.call) + " was refused" +
            (newest.error == record.dump.reason ? "" : ": " + newest.error);
  for (auto op = operations.rbegin(); op != operations.rend(); ++op) {
    if (!is_message(op->call.kind) || op->state != State::kWaiting) continue;
    text += "; it waited in " + to_string(op->call) + " for " + for_people(record.waited_ns(*op));
    break;
  }
  return text;
}

/// Ranks that called the same thing.
struct Camp {
  Op call;
  std::vector<int> ranks;
};

/// The ranks in `sequence` by what they called, most ranks first.
std::vector<Camp> camps_at(const std::vector<RankDump>& records, std::uint64_t sequence) {
  std::vector<Camp> camps;
  for (const RankDump& record : records) {
    const Operation* op = record.at(sequence);
    if (op == nullptr) continue;
    auto camp =
        std::find_if(camps.begin(), camps.end(), [&](const Camp& c) { return same_call(c.call, op->call); });
    if (camp == camps.end()) camp = camps.insert(camps.end(), {op->call, {}});
    camp->ranks.push_back(record.dump.rank);
  }
  std::stable_sort(camps.begin(), camps.end(),
                   [](const Camp& a, const Camp& b) { return a.ranks.size() > b.ranks.size(); });
  return camps;
}

Finding mismatch(std::uint64_t sequence, const std::vector<Camp>& camps) {
  Finding finding{.kind = FindingKind::kMismatch, .sequence = sequence};
  std::string text;
  for (std::size_t i = 0; i < camps.size(); ++i) {
    text += i == 0 ? "" : i + 1 == camps.size() ? " and " : ", ";
    text += name_ranks(camps[i].ranks);
    text += i == 0 ? " called " : " ";
    text += to_string(camps[i].call);
    // With as many on either side nobody can say who is wrong.
    const bool few = i != 0 || camps[0].ranks.size() == camps[1].ranks.size();
    if (few) finding.ranks.insert(finding.ranks.end(), camps[i].ranks.begin(), camps[i].ranks.end());
  }
  std::sort(finding.ranks.begin(), finding.ranks.end());
  finding.text = "at #" + std::to_string(sequence) + " " + text;
  return finding;
}

/// Whether somebody failed, or has waited for long, in `sequence` or in what comes after it.
bool is_stuck(const std::vector<RankDump>& records, std::uint64_t sequence) {
  for (const RankDump& record : records) {
    for (auto op = record.collectives.rbegin(); op != record.collectives.rend(); ++op) {
      if ((*op)->call.sequence < sequence) break;
      if ((*op)->state == State::kFailed) return true;
      if (is_open((*op)->state) && record.waited_ns(**op) >= kStuckAfter_ns) return true;
    }
  }
  return false;
}

/// Who has not come to `sequence`, which others have launched.
Finding missing(const std::vector<RankDump>& records, std::uint64_t sequence, const Camp& present) {
  std::int64_t waited = 0, launched = std::numeric_limits<std::int64_t>::max();
  std::vector<int> waits, not_waiting, completed;
  for (int rank : present.ranks) {
    const RankDump& record = *record_of(records, rank);
    const Operation& op = *record.at(sequence);
    launched = std::min(launched, op.launched_ns);
    if (op.state == State::kCompleted) {
      completed.push_back(rank);
      continue;
    }
    waited = std::max(waited, record.waited_ns(op));
    (op.state == State::kLaunched ? not_waiting : waits).push_back(rank);
  }
  Finding finding{.kind = FindingKind::kMissing, .sequence = sequence};
  for (const RankDump& record : records) {
    if (record.last() >= sequence) continue;
    finding.ranks.push_back(record.dump.rank);
    const bool too_early = record.dump.dumped_ns < launched;
    finding.details.push_back(doing(record));
    if (too_early)
      finding.details.back() += "; but it was dumped before the others launched that: dump it again";
  }
  finding.text = name_ranks(finding.ranks) + " never reached #" + std::to_string(sequence) + " " +
                 to_string(present.call);
  const auto say = [&](const std::vector<int>& ranks, const std::string& what) {
    if (!ranks.empty()) finding.text += "; " + name_ranks(ranks) + what;
  };
  say(waits, " waited in it for " + for_people(waited));
  say(not_waiting, " launched it and did not wait for it");
  say(completed, " completed it");
  return finding;
}

/// All have launched `sequence`, and some wait for long while others never began to. The native backend moves
/// operations in wait(), so who does not wait stops everybody.
std::optional<Finding> held_up(const std::vector<RankDump>& records, std::uint64_t sequence,
                               const Op& called) {
  Finding finding{.kind = FindingKind::kHeldUp, .sequence = sequence};
  std::vector<int> waits;
  std::int64_t waited = 0;
  for (const RankDump& record : records) {
    const Operation* op = record.at(sequence);
    if (op == nullptr || op->state == State::kCompleted) continue;
    if (op->state == State::kLaunched) {
      finding.ranks.push_back(record.dump.rank);
      finding.details.push_back(doing(record));
    } else {
      waits.push_back(record.dump.rank);
      waited = std::max(waited, record.waited_ns(*op));
    }
  }
  if (finding.ranks.empty() || waits.empty() || waited < kStuckAfter_ns) return std::nullopt;
  finding.text = name_ranks(finding.ranks) + " launched #" + std::to_string(sequence) + " " +
                 to_string(called) + " and never waited for it; " + name_ranks(waits) + " waited in it for " +
                 for_people(waited);
  return finding;
}

/// "ranks 0-2: text" for each text that is not empty, in rank order.
void note_by_text(Report& report, const std::vector<RankDump>& records, const std::string& before,
                  const auto& text_of) {
  std::vector<std::pair<std::string, std::vector<int>>> said;
  for (const RankDump& record : records) {
    const std::string text = text_of(record);
    if (text.empty()) continue;
    auto same = std::find_if(said.begin(), said.end(), [&](const auto& one) { return one.first == text; });
    if (same == said.end()) same = said.insert(said.end(), {text, {}});
    same->second.push_back(record.dump.rank);
  }
  for (const auto& [text, ranks] : said)
    report.notes.push_back(std::string(before).append(name_ranks(ranks)).append(": ").append(text));
}

void compare_collectives(Report& report, const std::vector<RankDump>& records, std::size_t rows) {
  std::uint64_t first = 1, last = 0;
  for (const RankDump& record : records) {
    first = std::max(first, record.first_kept());
    last = std::max(last, record.last());
  }
  report.compared_from = first;
  std::uint64_t at = first;
  for (; at <= last; ++at) {
    const auto camps = camps_at(records, at);
    if (camps.empty()) break;
    if (camps.size() > 1) {
      report.findings.push_back(mismatch(at, camps));
      break;
    }
    const bool behind = std::any_of(records.begin(), records.end(),
                                    [&](const RankDump& record) { return record.last() < at; });
    if (behind) {
      if (is_stuck(records, at))  // or those behind may be about to come
        report.findings.push_back(missing(records, at, camps.front()));
      break;
    }
    report.agreed_through = at;
    if (auto finding = held_up(records, at, camps.front().call)) {
      report.findings.push_back(*std::move(finding));
      break;
    }
  }
  fill_table(report, records, std::min(at + 1, last), rows);  // and one row of what came after
}

const Operation* first_failure(const RankDump& record) {
  for (const Operation& op : record.dump.operations) {
    if (op.state == State::kFailed) return &op;
  }
  return nullptr;
}

void find_absent(Report& report) {
  Finding finding{.kind = FindingKind::kNoDump};
  for (int rank = 0; rank < report.size; ++rank) {
    if (!std::binary_search(report.ranks.begin(), report.ranks.end(), rank)) finding.ranks.push_back(rank);
  }
  if (finding.ranks.empty()) return;
  finding.text =
      "there is no dump of " + name_ranks(finding.ranks) +
      ": it died first, or it is on another machine (bring its file here), or nothing failed on it: it "
      "may have been told to end with all its operations complete";
  report.findings.push_back(std::move(finding));
}

Report report_on(std::vector<RankDump> records, std::vector<std::string> notes, std::size_t rows) {
  const Dump& any = records.front().dump;
  Report report{.group = any.group,
                .generation = any.generation,
                .backend = any.backend,
                .size = any.size,
                .notes = std::move(notes)};
  for (const RankDump& record : records) {
    report.ranks.push_back(record.dump.rank);
    report.newest_ns = std::max(report.newest_ns, record.dump.dumped_ns);
    report.size = std::max(report.size, record.dump.size);
  }
  compare_collectives(report, records, rows);
  find_absent(report);
  note_by_text(report, records, "failed on ", [](const RankDump& record) {
    const Operation* op = first_failure(record);
    if (op == nullptr) return std::string();
    const std::string number = is_message(op->call.kind) ? "" : "#" + std::to_string(op->call.sequence) + " ";
    return number + to_string(op->call) + ": " + op->error;
  });
  note_by_text(report, records, "dumped on ", [](const RankDump& record) {
    const Operation* op = first_failure(record);
    return op != nullptr && op->error == record.dump.reason ? std::string() : record.dump.reason;
  });
  return report;
}

}  // namespace

std::vector<Report> analyse(std::vector<Dump> dumps, std::size_t rows) {
  // By rank, later dumps first.
  std::stable_sort(dumps.begin(), dumps.end(), [](const Dump& a, const Dump& b) {
    return std::tuple(a.rank, -a.dumped_ns) < std::tuple(b.rank, -b.dumped_ns);
  });
  std::map<std::pair<std::string, Generation>, std::vector<Dump>> groups;
  for (Dump& dump : dumps) groups[{dump.group, dump.generation}].push_back(std::move(dump));
  std::vector<Report> reports;
  for (auto& [key, members] : groups) {
    std::int64_t formed = 0;
    for (const Dump& dump : members) formed = std::max(formed, std::min(dump.formed_ns, dump.dumped_ns));
    std::vector<RankDump> records;
    std::vector<std::string> notes;
    for (Dump& dump : members) {
      const std::string who = "rank " + std::to_string(dump.rank);
      if (dump.dumped_ns < formed - kEarlierRun_ns) {
        notes.push_back("left out " + who +
                        ": its dump is older than the group of the others, so of an earlier run");
      } else if (!records.empty() && records.back().dump.rank == dump.rank) {
        notes.push_back("left out an earlier dump of " + who);
      } else {
        records.emplace_back(std::move(dump));
      }
    }
    reports.push_back(report_on(std::move(records), std::move(notes), rows));
  }
  std::stable_sort(reports.begin(), reports.end(),
                   [](const Report& a, const Report& b) { return a.newest_ns > b.newest_ns; });
  return reports;
}

}  // namespace troupe::collectives::flight
