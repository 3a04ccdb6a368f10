/// The n-th send to a rank with a tag belongs to the n-th receive there that names the sender. Where a rank
/// receives from any rank nobody knows whose message it took: what it asked for with that tag and what all
/// sent it are counted, and no more.

#include <compare>
#include <map>
#include <optional>

#include "collectives/flight/rank_dump.hpp"

namespace troupe::collectives::flight {
namespace {

/// The messages from one rank to another with one tag, by their numbers.
struct Channel {
  std::map<std::uint64_t, const Operation*> sends;
  std::map<std::uint64_t, const Operation*> receives;
};
/// The messages to one rank with one tag.
struct Inbox {
  int to = 0;
  std::uint32_t tag = 0;
  auto operator<=>(const Inbox&) const = default;
};
using Channels = std::map<int, Channel>;  ///< of an inbox, by the sender; kAnyRank: receives from whomever

constexpr std::size_t kMaxFindings = 8;

std::uint64_t newest(const std::map<std::uint64_t, const Operation*>& messages) {
  return messages.empty() ? 0 : messages.rbegin()->first;
}

bool is_stuck(const Operation& op, const RankDump& here, std::int64_t stuck_after_ns) {
  return op.state == State::kFailed || (is_open(op.state) && here.waited_ns(op) >= stuck_after_ns);
}

std::string waited(const Operation& op, const RankDump& here) {
  return "rank " + std::to_string(here.dump.rank) + " waited " + for_people(here.waited_ns(op)) + " in " +
         to_string(op.call) + ", message " + std::to_string(op.call.sequence) + " of that tag; ";
}

/// `op` of rank `here` never met a partner on rank `there`; null: it may have, or may yet.
std::optional<Finding> lone(const Operation& op, const RankDump& here, const RankDump* there,
                            std::uint64_t partners, std::int64_t stuck_after_ns) {
  if (!is_stuck(op, here, stuck_after_ns) || there == nullptr || there->dump.dumped_ns < op.launched_ns) {
    return std::nullopt;
  }
  const int other = there->dump.rank;
  std::string text = waited(op, here) + "rank " + std::to_string(other);
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

std::optional<Finding> differs(const Operation& send, const Operation& receive, int from, int to) {
  if (send.call.count == receive.call.count && send.call.dtype == receive.call.dtype) return std::nullopt;
  Finding finding{.kind = FindingKind::kMessage, .sequence = send.call.sequence};
  finding.ranks = {std::min(from, to), std::max(from, to)};
  finding.text = "rank " + std::to_string(from) + " called " + to_string(send.call) + " and rank " +
                 std::to_string(to) + " " + to_string(receive.call) + ", message " +
                 std::to_string(send.call.sequence) + " of that tag";
  return finding;
}

/// What waits in vain in an inbox with receives from any rank: all ranks together have too few partners.
std::optional<Finding> lone_in(const Inbox& inbox, const Channels& channels,
                               const std::vector<RankDump>& records, std::int64_t stuck_after_ns) {
  std::uint64_t sent = 0, received = 0;
  for (const auto& [from, channel] : channels) {
    sent += newest(channel.sends);
    received += newest(channel.receives);
  }
  if (sent == received) return std::nullopt;
  const bool sends_wait = sent > received;
  for (const auto& [from, channel] : channels) {
    for (const auto& [n, op] : sends_wait ? channel.sends : channel.receives) {
      const RankDump& here = *record_of(records, sends_wait ? from : inbox.to);
      // Who has no dump, or an early one, may have been the partner.
      const bool all_told = records.size() == static_cast<std::size_t>(here.dump.size) &&
                            std::all_of(records.begin(), records.end(), [op = op](const RankDump& record) {
                              return record.dump.dumped_ns >= op->launched_ns;
                            });
      if (!all_told || !is_stuck(*op, here, stuck_after_ns)) continue;
      return Finding{.kind = FindingKind::kMessage,
                     .sequence = n,
                     .ranks = {here.dump.rank},
                     .text = waited(*op, here) + "all sent rank " + std::to_string(inbox.to) + " " +
                             std::to_string(sent) + " of it, and it asked for " + std::to_string(received)};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<Finding> lone_messages(const std::vector<RankDump>& records, std::int64_t stuck_after_ns) {
  std::map<Inbox, Channels> inboxes;
  for (const RankDump& record : records) {
    for (const Operation& op : record.dump.operations) {
      if (!is_message(op.call.kind) || op.state == State::kRefused || op.call.sequence == 0) continue;
      const int self = record.dump.rank;
      if (op.call.kind == OpKind::kSend) {
        inboxes[{op.call.peer, op.call.tag}][self].sends[op.call.sequence] = &op;
      } else {
        inboxes[{self, op.call.tag}][op.call.peer].receives[op.call.sequence] = &op;
      }
    }
  }
  std::vector<Finding> findings;
  const auto add = [&](std::optional<Finding> finding) {
    if (finding && findings.size() < kMaxFindings) findings.push_back(*std::move(finding));
  };
  for (const auto& [inbox, channels] : inboxes) {
    if (channels.contains(kAnyRank)) {
      add(lone_in(inbox, channels, records, stuck_after_ns));
      continue;
    }
    for (const auto& [sender, channel] : channels) {
      const auto& [sends, receives] = channel;
      const RankDump* from = record_of(records, sender);
      const RankDump* to = record_of(records, inbox.to);
      for (const auto& [n, send] : sends) {
        if (const auto receive = receives.find(n); receive != receives.end()) {
          add(differs(*send, *receive->second, sender, inbox.to));
        } else if (n > newest(receives)) {
          add(lone(*send, *from, to, newest(receives), stuck_after_ns));
          break;
        }
      }
      for (const auto& [n, receive] : receives) {
        if (n <= newest(sends) || sends.contains(n)) continue;
        add(lone(*receive, *to, from, newest(sends), stuck_after_ns));
        break;
      }
    }
  }
  return findings;
}

}  // namespace troupe::collectives::flight
