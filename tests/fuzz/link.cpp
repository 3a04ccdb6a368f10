// The packets of a link, from a peer that may be anybody.
#include <algorithm>

#include "runtime/link/fragment.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {
namespace {

/// The front of `bytes`, which loses them.
std::span<const std::byte> take(std::span<const std::byte>& bytes, std::size_t most) {
  const auto front = bytes.first(std::min(most, bytes.size()));
  bytes = bytes.subspan(front.size());
  return front;
}
std::size_t take_u16(std::span<const std::byte>& bytes) {
  const auto two = take(bytes, 2);
  return two.size() < 2 ? 0 : static_cast<std::size_t>(two[0]) | static_cast<std::size_t>(two[1]) << 8;
}

}  // namespace

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

}  // namespace troupe::fuzz
