#include <compare>
#include <map>
#include <optional>

#include "collectives/flight/rank_dump.hpp"

namespace troupe::collectives::flight {
namespace {

/// The messages from one rank to another with one tag: the n-th send belongs to the n-th receive.
struct Channel {
  int from = 0;
  int to = 0;
  std::uint32_t tag = 0;
  auto operator<=>(const Channel&) const = default;
};
struct Ends {
  std::map<std::uint64_t, const Operation*> sends;
  std::map<std::uint64_t, const Operation*> receives;
};

constexpr std::size_t kMaxFindings = 8;

std::uint64_t newest(const std::map<std::uint64_t, const Operation*>& messages) {
  return messages.empty() ? 0 : messages.rbegin()->first;
}

/// `op` of rank `here` never met a partner on rank `there`; null: it may have, or may yet.
std::optional<Finding> lone(const Operation& op, const RankDump& here, const RankDump* there,
                            std::uint64_t partners, std::int64_t stuck_after_ns) {
  const bool stuck =
      op.state == State::kFailed || (is_open(op.state) && here.waited_ns(op) >= stuck_after_ns);
  if (!stuck || there == nullptr || there->dump.dumped_ns < op.launched_ns) return std::nullopt;
  const int other = there->dump.rank;
  std::string text = "rank " + std::to_string(here.dump.rank) + " waited " + for_people(here.waited_ns(op)) +
                     " in " + to_string(op.call) + ", message " + std::to_string(op.call.sequence) +
                     " of that tag; rank " + std::to_string(other);
  text += op.call.kind == OpKind::kSend ? " received " : " sent ";
  text += partners == 0 ? "none" : "only " + std::to_string(partners);
  // Its ring may have forgotten a channel that it used long ago.
  if (partners == 0 && there->dump.launched > there->dump.operations.size())
    text += " in its last " + std::to_string(there->dump.operations.size()) + " operations";
  return Finding{.kind = FindingKind::kMessage,
                 .sequence = op.call.sequence,
                 .ranks = {std::min(here.dump.rank, other), std::max(here.dump.rank, other)},
                 .text = std::move(text)};
}

std::optional<Finding> differs(const Operation& send, const Operation& receive, const Channel& channel) {
  if (send.call.count == receive.call.count && send.call.dtype == receive.call.dtype) return std::nullopt;
  Finding finding{.kind = FindingKind::kMessage, .sequence = send.call.sequence};
  finding.ranks = {std::min(channel.from, channel.to), std::max(channel.from, channel.to)};
  finding.text = "rank " + std::to_string(channel.from) + " called " + to_string(send.call) + " and rank " +
                 std::to_string(channel.to) + " " + to_string(receive.call) + ", message " +
                 std::to_string(send.call.sequence) + " of that tag";
  return finding;
}

}  // namespace

std::vector<Finding> lone_messages(const std::vector<RankDump>& records, std::int64_t stuck_after_ns) {
  std::map<Channel, Ends> channels;
  for (const RankDump& record : records) {
    for (const Operation& op : record.dump.operations) {
      if (!is_message(op.call.kind) || op.state == State::kRefused || op.call.sequence == 0) continue;
      const int self = record.dump.rank;
      if (op.call.peer == kAnyRank) continue;  // whose it took is not known
      if (op.call.kind == OpKind::kSend) {
        channels[{self, op.call.peer, op.call.tag}].sends[op.call.sequence] = &op;
      } else {
        channels[{op.call.peer, self, op.call.tag}].receives[op.call.sequence] = &op;
      }
    }
  }
  std::vector<Finding> findings;
  const auto add = [&](std::optional<Finding> finding) {
    if (finding && findings.size() < kMaxFindings) findings.push_back(*std::move(finding));
  };
  for (const auto& [channel, ends] : channels) {
    const RankDump* from = record_of(records, channel.from);
    const RankDump* to = record_of(records, channel.to);
    for (const auto& [n, send] : ends.sends) {
      if (const auto receive = ends.receives.find(n); receive != ends.receives.end()) {
        add(differs(*send, *receive->second, channel));
      } else if (n > newest(ends.receives)) {
        add(lone(*send, *from, to, newest(ends.receives), stuck_after_ns));
        break;
      }
    }
    for (const auto& [n, receive] : ends.receives) {
      if (n <= newest(ends.sends) || ends.sends.contains(n)) continue;
      add(lone(*receive, *to, from, newest(ends.sends), stuck_after_ns));
      break;
    }
  }
  return findings;
}

}  // namespace troupe::collectives::flight
