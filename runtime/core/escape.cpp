#include "runtime/core/escape.hpp"

#include <algorithm>

namespace troupe {
namespace {

/// Bytes of the character that `text` begins with, in UTF-8; 0: it begins with none.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t count = byte(0) < 0x80   ? 1
                            : byte(0) < 0xc2 ? 0
                            : byte(0) < 0xe0 ? 2
                            : byte(0) < 0xf0 ? 3
                                             : 4;
  if (count == 0 || byte(0) > 0xf4 || count > text.size()) return 0;
  for (std::size_t i = 1; i < count; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  const bool is_overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  const bool is_none = (byte(0) == 0xed && byte(1) > 0x9f) || (byte(0) == 0xf4 && byte(1) > 0x8f);
  return is_overlong || is_none ? 0 : count;
}

std::string escape(std::string_view text, std::string_view kept) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t count = character_bytes(text);
    const std::string_view one = text.substr(0, std::max<std::size_t>(1, count));
    text.remove_prefix(one.size());
    const auto first = static_cast<unsigned char>(one.front());
    const bool is_c1 = count == 2 && first == 0xc2 && static_cast<unsigned char>(one[1]) < 0xa0;
    const bool is_control = count == 0 || is_c1 || (count == 1 && (first < 0x20 || first == 0x7f));
    if (!is_control || kept.find(one.front()) != std::string_view::npos) {
      out.append(one);
      continue;
    }
    for (const char c : one) {
      const auto byte = static_cast<unsigned char>(c);
      out.append({'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 15U]});
    }
  }
  return out;
}

}  // namespace

std::string escape_name(std::string_view text) {
  return escape(text, "");
}
std::string escape_text(std::string_view text) {
  return escape(text, "\n\t");
}
std::string shown_name(std::string_view text, std::size_t most) {
  if (text.size() <= most) return escape_name(text);
  return escape_name(text.substr(0, most)) + "... (" + std::to_string(text.size()) + " bytes)";
}
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:@%,";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}
std::string bounded_text(std::string text) {
  constexpr std::size_t kLongest = std::size_t{64} << 10;
  const std::size_t all = text.size();
  if (all <= kLongest) return text;
  text.resize(kLongest);
  return text + "... (" + std::to_string(all) + " bytes)";
}

}  // namespace troupe
