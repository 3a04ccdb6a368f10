#include "collectives/compare_calls.hpp"

#include <algorithm>

namespace troupe::collectives {
namespace {

std::string text_of(const CallWords& words) {
  return to_string(OpWords{words[0], words[1], words[2]}) + " #" + std::to_string(words[3]);
}

/// A number for `count` elements that one rank gives another.
std::uint64_t number_of(int from, int to, std::uint64_t count) {
  std::uint64_t mixed = 0;
  for (const std::uint64_t word : {std::uint64_t(from) + 1, std::uint64_t(to) + 1, count + 1}) {
    mixed = (mixed ^ word) * 0x9e3779b97f4a7c15;
    mixed ^= mixed >> 29;
  }
  return mixed * 0xbf58476d1ce4e5b9;
}

std::uint64_t balance_of(const Op& op, int rank) {
  if (op.kind != OpKind::kAllToAllV) return 0;
  std::uint64_t balance = 0;
  for (std::size_t peer = 0; peer < op.counts.size(); ++peer) {
    balance += number_of(rank, static_cast<int>(peer), op.counts[peer]);
    balance -= number_of(static_cast<int>(peer), rank, op.from_counts[peer]);
  }
  return balance;
}

}  // namespace

CallWords call_words(const Op& op, int rank) {
  const OpWords call = encode(op);
  return {call[0], call[1], call[2], op.sequence, balance_of(op, rank)};
}

std::string difference(std::span<const CallWords> calls) {
  const CallWords& first = calls.front();
  std::uint64_t balance = 0;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const CallWords& other = calls[rank];
    balance += other.back();
    if (std::equal(other.begin(), other.end() - 1, first.begin())) continue;
    return "ranks called different operations: rank 0 " + text_of(first) + ", rank " + std::to_string(rank) +
           " " + text_of(other);
  }
  if (balance != 0) return "ranks give each other other counts than they take in " + text_of(first);
  return {};
}

}  // namespace troupe::collectives
