#include <charconv>
#include <cstdio>
#include <sstream>

#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"

namespace troupe::cli {

int say_usage(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream help, wrong;
  const int code = app.exit(error, help, wrong);
  std::printf("%s", help.str().c_str());
  std::fprintf(stderr, "%s", escape_text(wrong.str()).c_str());
  return code == 0 ? 0 : 2;
}

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  return CLI::Validator(
      [=](std::string& text) {
        std::int64_t value = 0;
        const char* end = text.data() + text.size();
        const auto read = std::from_chars(text.data(), end, value);
        const bool good = read.ec == std::errc() && read.ptr == end && value >= least && value <= most;
        return good ? std::string()
                    : "'" + text + "' is not a whole number of " + std::to_string(least) + " to " +
                          std::to_string(most);
      },
      "");
}

CLI::Validator number_of(const std::string& what, int most) {
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        const char* end = text.data() + text.size();
        const auto read = std::from_chars(text.data(), end, value);
        const bool good = read.ec == std::errc() && read.ptr == end && value >= 0 && value <= most;
        return good ? std::string()
                    : "'" + text + "' is not a number of 0 to " + std::to_string(most) + " " + what;
      },
      "");
}

}  // namespace troupe::cli
