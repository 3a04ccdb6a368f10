#include "actors/tune/words.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "actors/report/format.hpp"

namespace troupe::tune {

std::string in_a_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return report::without_controls(std::move(text));
}

std::string words(const char* format, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return std::string(text, static_cast<std::size_t>(std::clamp(length, 0, int(sizeof text) - 1)));
}

}  // namespace troupe::tune
