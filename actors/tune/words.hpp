/// Texts for people.
#pragma once

#include <string>

namespace troupe::tune {

/// Of "what: why" the whole, in one line.
std::string in_a_line(std::string text);
/// printf into a string, for reasons.
[[gnu::format(printf, 1, 2)]] std::string words(const char* format, ...);

}  // namespace troupe::tune
