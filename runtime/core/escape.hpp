/// Text of others, as a terminal may show it: no control character of it moves the cursor or ends a line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

/// A name: control characters (of Unicode, too), and bytes that are no UTF-8, as \xNN.
std::string escape_name(std::string_view text);
/// A message of one or more lines: the same, but for newlines and tabs.
std::string escape_text(std::string_view text);
/// A name of others in a message: escape_name(), cut beyond `most` bytes, with its length then.
std::string shown_name(std::string_view text, std::size_t most = 200);
/// A word as a shell reads it back: in quotes where it needs them.
std::string shell_word(const std::string& word);
/// A text for people, cut beyond 64 KiB, with its length: one of many megabytes would not fit a message.
std::string bounded_text(std::string text);

}  // namespace troupe
