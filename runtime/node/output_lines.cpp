#include "runtime/node/output_lines.hpp"

#include <algorithm>
#include <utility>

namespace troupe::node {
namespace {

constexpr std::size_t kLongestLine = 64 * 1024;
constexpr std::size_t kRemembered = 300;

}  // namespace

std::string OutputLines::feed(std::string_view text, std::uint32_t turn) {
  if (std::exchange(turn_, turn) != turn) read_ = 0;
  read_ += static_cast<std::int64_t>(text.size());
  partial_.append(text);
  const auto end = partial_.rfind('\n');
  std::string whole;
  if (end != std::string::npos) {
    whole = partial_.substr(0, end + 1);
    partial_.erase(0, end + 1);
  }
  const bool is_cut = partial_.size() >= kLongestLine;
  if (is_cut) whole += std::exchange(partial_, {});
  remember(whole);
  return is_cut ? whole + "\n" : whole;
}

std::string OutputLines::finish() {
  std::string rest = std::exchange(partial_, {});
  remember(rest);
  if (!rest.empty()) rest.push_back('\n');
  return rest;
}

void OutputWindows::sent(ProcessAddress driver, std::size_t bytes) {
  Window& window = all_[driver];
  window.under_way += bytes;
  window.is_full = window.is_full || window.under_way >= bytes_;
}

bool OutputWindows::taken(ProcessAddress driver, std::size_t bytes) {
  const auto at = all_.find(driver);
  if (at == all_.end()) return false;
  Window& window = at->second;
  window.under_way -= std::min(window.under_way, bytes);
  const bool has_room = window.under_way <= bytes_ / 2;
  const bool had_none = has_room && std::exchange(window.is_full, false);
  if (window.under_way == 0) all_.erase(at);
  return had_none;
}

void OutputLines::remember(std::string_view lines) {
  const auto last = lines.find_last_not_of('\n');
  if (last == std::string_view::npos) return;  // empty lines alone say nothing
  const auto before = lines.rfind('\n', last);
  const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  last_line_ = lines.substr(begin, last + 1 - begin).substr(0, kRemembered);
  last_turn_ = turn_;
  last_begin_ = read_ - static_cast<std::int64_t>(partial_.size() + lines.size() - begin);
}

}  // namespace troupe::node
