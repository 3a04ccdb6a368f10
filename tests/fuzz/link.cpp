// The packets of a link, from a peer that may be anybody.
#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/link/fragment.hpp"
#include "tests/fuzz/reader.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {
/// The first byte has the joiner's options; then packets, each after its length in two bytes.
bool link_packets(std::span<const std::byte> bytes) {
  const auto first = take(bytes, 1);
  if (first.empty()) return false;
  const unsigned flags = static_cast<unsigned>(first[0]);
  JoinBudget budget{.left = std::size_t{1} << 20};
  const std::size_t whole_budget = budget.left;
  bool accepted = false;
  {
    Joiner joiner({.takes = (flags & 1) != 0 ? Joiner::Takes::kFrame : Joiner::Takes::kBody,
                   .hello = (flags & 2) != 0,
                   .budget = (flags & 4) != 0 ? &budget : nullptr});
    bool failed = false;
    while (!bytes.empty()) {
      const auto fed = joiner.feed(take(bytes, take_u16(bytes)));
      check(!failed || !fed, "after an error every packet is an error");
      if (!fed) {
        failed = true;
        continue;
      }
      if (*fed == Joiner::Fed::kGoodbye) {
        check(joiner.reason() == printable(joiner.reason()), "the reason of a goodbye can be printed");
        check(joiner.reason().size() <= kMaxReasonBytes, "the reason of a goodbye is short");
      }
      if (*fed != Joiner::Fed::kMessage) continue;
      accepted = true;
      check(!joiner.pending(), "nothing is pending after a whole message");
      const std::size_t body = joiner.body().size();
      check(body <= wire::kMaxBodyBytes, "a message keeps the limit of its length");
      const auto taken = joiner.take();
      check(taken.size() == ((flags & 1) != 0 ? body + wire::kHeaderBytes : body),
            "take gives what was asked for");
    }
  }
  check(budget.left == whole_budget, "a joiner gives its whole budget back");
  return accepted;
}

/// A link that loses, doubles and swaps packets, as the bytes say: two for each message (how long it is, how
/// long its packets are), then one for each packet. Whatever arrives must be a message as it was sent, the
/// next one.
bool link_faults(std::span<const std::byte> bytes) {
  Joiner joiner({.takes = Joiner::Takes::kBody});
  std::vector<std::size_t> body_sizes;
  std::uint64_t arrived = 0;
  const auto deliver = [&](const wire::Bytes& packet) {
    const auto fed = joiner.feed(packet);
    if (!fed) return false;
    if (*fed != Joiner::Fed::kMessage) return true;
    ++arrived;
    check(joiner.header().id == arrived, "messages arrive in order, and none is passed over");
    const wire::Bytes body = joiner.take();
    const bool whole = body.size() == body_sizes.at(arrived - 1) &&
                       std::all_of(body.begin(), body.end(),
                                   [&](std::byte byte) { return byte == static_cast<std::byte>(arrived); });
    check(whole, "a message arrives as it was sent");
    return true;
  };
  std::optional<wire::Bytes> held;
  for (std::uint32_t number = 1; !bytes.empty(); ++number) {
    const auto shape = take(bytes, 2);
    if (shape.size() < 2) break;
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kCall;
    header.id = number;
    const wire::Bytes body(static_cast<std::size_t>(shape[0]) * 4, static_cast<std::byte>(number));
    body_sizes.push_back(body.size());
    const auto head = wire::encode_header(header);
    const std::size_t packet_bytes = kMinPacketBytes + static_cast<std::size_t>(shape[1]);
    for (Cutter cutter(number, head, body, packet_bytes); !cutter.done(); cutter.advance()) {
      const Packet cut = cutter.next();
      wire::Bytes packet(cut.size());
      cut.copy_to(packet.data());
      const auto fate = take(bytes, 1);
      const unsigned what = fate.empty() ? 0 : static_cast<unsigned>(fate[0]);
      if (what == 1) continue;                                // lost
      if (what == 2 && !deliver(packet)) return arrived > 0;  // twice
      if (what == 3 && !held) {                               // after the next one
        held = packet;
        continue;
      }
      if (!deliver(packet)) return arrived > 0;
      if (held && !deliver(*std::exchange(held, {}))) return arrived > 0;
    }
  }
  return arrived > 0;
}

}  // namespace troupe::fuzz
