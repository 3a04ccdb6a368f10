#include "collectives/rendezvous/store_board.hpp"

#include <charconv>

namespace troupe::collectives {
namespace {

constexpr Duration kAskAgain = std::chrono::milliseconds(10);
constexpr const char* kKey = "abort";

/// "KIND REASON".
AbortReason parse(const std::string& text) {
  int kind = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, kind);
  const bool known = error == std::errc() && kind >= 0 && kind <= static_cast<int>(AbortKind::kPeerLost);
  if (!known || at == end) return {AbortKind::kUnknown, text};
  return {static_cast<AbortKind>(kind), std::string(at + 1, end)};
}

}  // namespace

void StoreBoard::post(AbortKind kind, const std::string& reason) {
  const std::string text =
      std::to_string(static_cast<int>(kind)) + " " + reason.substr(0, kMaxAbortReasonBytes);
  const std::string first = keys_->set_once(kKey, text);
  const std::lock_guard lock(mutex_);
  first_ = parse(first);
}

std::optional<AbortReason> StoreBoard::read() {
  {
    const std::lock_guard lock(mutex_);
    const Instant now = clock_.now();
    if (first_ || now - asked_ < kAskAgain) return first_;
    asked_ = now;
  }
  try {
    if (const auto text = keys_->find(kKey)) {
      const std::lock_guard lock(mutex_);
      first_ = parse(*text);
      return first_;
    }
  } catch (const Unavailable&) {
  }
  return std::nullopt;
}

}  // namespace troupe::collectives
