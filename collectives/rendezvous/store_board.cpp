#include "collectives/rendezvous/store_board.hpp"

#include <charconv>

namespace troupe::collectives {
namespace {

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

StoreBoard::StoreBoard(std::shared_ptr<Store> keys) : keys_(std::move(keys)), watch_(keys_->watch(kKey)) {}

void StoreBoard::post(AbortKind kind, const std::string& reason) {
  const std::string text =
      std::to_string(static_cast<int>(kind)) + " " + reason.substr(0, kMaxAbortReasonBytes);
  (void)keys_->set_once(kKey, text);
  // Every rank has heard, and nobody else will ask: each watches since before the group was formed.
  (void)keys_->erase(kKey);
}

std::optional<AbortReason> StoreBoard::read() {
  if (const auto text = watch_->value()) return parse(*text);
  return std::nullopt;
}

}  // namespace troupe::collectives
