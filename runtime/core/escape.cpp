#include "runtime/core/escape.hpp"

namespace troupe {
namespace {

std::string escape(std::string_view text, std::string_view kept) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  bool leads = false;  // U+0080 to U+009F are 0xc2 and one more byte
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_control = byte < 0x20 || byte == 0x7f || (leads && byte < 0xa0);
    leads = byte == 0xc2;
    if (!is_control || kept.find(c) != std::string_view::npos) {
      out.push_back(c);
    } else {
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
