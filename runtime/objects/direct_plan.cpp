#include "runtime/objects/direct_plan.hpp"

namespace troupe::objects {
namespace {

constexpr std::uint64_t kPage = 4096;
/// A connection for less than this takes as long as it saves.
constexpr std::uint64_t kLeastPart = std::uint64_t{16} << 20;

}  // namespace

DirectOwners::Choice DirectOwners::choose(ProcessAddress owner, std::uint64_t bytes, Instant now) const {
  if (bytes <= kLeastDirectBytes)
    return {Way::kLinks, {}, "it has no more than " + std::to_string(kLeastDirectBytes) + " bytes"};
  const auto at = owners_.find(owner);
  if (at == owners_.end()) return {Way::kAsk, {}, "its owner was not asked yet"};
  if (now < at->second.back_off_until) return {Way::kLinks, {}, "its owner was not reached a moment ago"};
  if (!at->second.address) return {Way::kAsk, {}, "its owner is asked again"};
  return {Way::kDirect, *at->second.address, "its owner is known"};
}

void DirectOwners::note(ProcessAddress owner, Owner what) {
  if (owners_.size() >= kMost && !owners_.contains(owner)) owners_.erase(owners_.begin());
  owners_.insert_or_assign(owner, std::move(what));
}

void DirectOwners::said(ProcessAddress owner, std::optional<DirectAddress> address, Instant now) {
  const bool is_one = address && !address->address.empty() && address->key.size() == 32;
  is_one ? note(owner, {std::move(address), Instant{0}}) : failed(owner, now);
}

void DirectOwners::ended(ProcessAddress owner, const Result<void>& how, Instant now) {
  if (!how && how.error().code != ErrorCode::kObjectLost) failed(owner, now);
}

void DirectOwners::failed(ProcessAddress owner, Instant now) {
  note(owner, {std::nullopt, now + kBackoff});
}

std::vector<Part> split(std::uint64_t bytes, std::size_t most) {
  const std::uint64_t worth = std::max<std::uint64_t>(1, bytes / kLeastPart);
  const std::uint64_t count = std::min<std::uint64_t>(worth, std::max<std::size_t>(1, most));
  const std::uint64_t each = (bytes + count * kPage - 1) / (count * kPage) * kPage;
  std::vector<Part> parts;
  for (std::uint64_t at = 0; at < bytes; at += each) parts.push_back({at, std::min(each, bytes - at)});
  return parts;
}

std::string why_not_given(const Part& wanted, std::uint64_t size) {
  if (wanted.bytes == 0) return "nothing was asked for";
  if (wanted.offset > size || wanted.bytes > size - wanted.offset)
    return "the object has " + std::to_string(size) + " bytes, and not " + std::to_string(wanted.bytes) +
           " from " + std::to_string(wanted.offset) + " on";
  return {};
}

Result<void> TransferDeadline::check(Instant now) const {
  if (now < until()) return {};
  const bool is_silent = now >= last_ + limits_.silence;
  return ErrorInfo{ErrorCode::kTimeout, "a direct connection was given up",
                   is_silent
                       ? "its other end was silent for " + std::to_string(to_seconds(limits_.silence)) + " s"
                       : "it was slower than 1 MiB/s",
                   "see whether that process is stopped, and the network"};
}

}  // namespace troupe::objects
