#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "runtime/core/endpoint.hpp"
#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"

namespace troupe::cli {

namespace {

/// The command that was parsed, to its last word: "troupe job submit".
const CLI::App& last_command(const CLI::App& app, std::string& name) {
  const CLI::App* at = &app;
  name = app.get_name();
  for (auto below = at->get_subcommands(); !below.empty(); below = at->get_subcommands()) {
    at = below.back();
    name += " " + at->get_name();
  }
  return *at;
}

/// Of two words: how many letters are to be changed, added, dropped or swapped with the next one.
std::size_t letters_apart(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

/// What is wrong with the word in a command's place: CLI11 does not name it.
std::string no_command(const CLI::App& app) {
  std::string command;
  const CLI::App& used = last_command(app, command);
  const std::vector<std::string> words = app.remaining(true);
  const auto word =
      std::find_if(words.begin(), words.end(), [](const std::string& w) { return !w.starts_with('-'); });
  std::string known, nearest;
  std::size_t least = 3;  // letters: more is another word
  for (const auto* one : used.get_subcommands([](const CLI::App*) { return true; })) {
    known += (known.empty() ? "" : ", ") + one->get_name();
    const std::size_t apart = word == words.end() ? least : letters_apart(*word, one->get_name());
    if (apart >= least) continue;
    least = apart;
    nearest = one->get_name();
  }
  const std::string said =
      word == words.end() ? "no command is given" : "there is no command '" + word->substr(0, 64) + "'";
  return command + ": " + said + (nearest.empty() ? "" : " (is " + nearest + " meant?)") + ": give one of " +
         known + " (" + command + " --help says more)";
}

/// What CLI11 calls "not expected", and says in no order: the first option that there is not, with the one
/// that may be meant, or a word too many.
std::string unexpected(const CLI::App& app) {
  std::string command;
  const CLI::App& used = last_command(app, command);
  const std::vector<std::string> words = app.remaining(true);
  const auto option = std::find_if(words.begin(), words.end(),
                                   [](const std::string& w) { return w.starts_with('-') && w != "--"; });
  const bool lacks_command =
      used.get_subcommands().empty() && !used.get_subcommands([](const CLI::App*) { return true; }).empty();
  if (option == words.end() && lacks_command) return no_command(app);
  if (option == words.end())
    return command + ": '" + (words.empty() ? "" : words.front()) + "' is one word too many; " + command +
           " --help shows what it takes";
  const std::string name = option->substr(0, option->find('='));
  const std::string stem = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::string meant;
  for (const CLI::Option* there : used.get_options()) {
    for (const std::string& one : there->get_lnames()) {
      const bool is_like =
          stem.size() > 2 && (one.find(stem) != std::string::npos || stem.find(one) != std::string::npos);
      if (is_like && one != "help") meant += (meant.empty() ? "--" : " or --") + one;
    }
  }
  return command + ": there is no option " + name + (meant.empty() ? "" : "; is " + meant + " meant?") +
         " (" + command + " --help)";
}

std::string with_help(const CLI::App& app, const std::string& wrong) {
  std::string command;
  last_command(app, command);
  return command + ": " + wrong + " (" + command + " --help)";
}

/// One line, whatever the words are that it quotes.
int say_wrong(const std::string& wrong) {
  constexpr std::size_t kMostBytes = 2000;
  std::fprintf(stderr, "%s\n", shown_name(wrong, kMostBytes).c_str());
  return 2;
}

/// What follows -- is no option of CLI11's.
class UsageAndMore final : public CLI::Formatter {
 public:
  explicit UsageAndMore(std::string more) : more_(std::move(more)) {}
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    return usage.insert(std::min(usage.find('\n'), usage.size()), " " + more_);
  }

 private:
  const std::string more_;
};

}  // namespace

void end_usage_with(CLI::App& app, const std::string& words) {
  app.formatter(std::make_shared<UsageAndMore>(words));
}

int say_usage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    return say_wrong(unexpected(app));
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
    std::string command;
    const CLI::App& used = last_command(app, command);
    const bool lacks_command = used.get_require_subcommand_min() > 0 && used.get_subcommands().empty();
    return say_wrong(lacks_command ? no_command(app) : with_help(app, error.what()));
  }
  if (error.get_exit_code() != 0) return say_wrong(with_help(app, error.what()));
  std::ostringstream help;
  app.exit(error, help, help);
  std::printf("%s", help.str().c_str());
  return 0;
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

namespace {

/// Nothing: it is none.
std::optional<double> fractional_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  const bool good = read.ec == std::errc() && read.ptr == end;
  return good ? std::optional(value) : std::nullopt;
}

}  // namespace

CLI::Validator number_of(const std::string& what, int most) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto value = fractional_number(text);
        return value && *value >= 0 && *value <= most
                   ? std::string()
                   : "'" + text + "' is not a number of 0 to " + std::to_string(most) + " " + what;
      },
      "");
}

CLI::Validator number_above_0(const std::string& what, int most) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto value = fractional_number(text);
        return value && *value > 0 && *value <= most
                   ? std::string()
                   : "'" + text + "' is no " + what + ": a number above 0, of at most " +
                         std::to_string(most);
      },
      "");
}

CLI::Validator host_and_port() {
  return CLI::Validator(
      [](std::string& text) {
        const auto read = parse_endpoint(text);
        if (!read) return read.error().message();
        return read->port > 0 ? std::string() : "'" + text + "' has the port 0, at which no head listens";
      },
      "");
}

CLI::Validator not_empty(const std::string& todo) {
  return CLI::Validator(
      [todo](std::string& text) { return text.empty() ? "it is empty: " + todo : std::string(); }, "");
}

std::optional<std::int64_t> parse_since(const std::string& text, std::int64_t now_ms) {
  std::int64_t count = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, count);
  if (read.ec == std::errc() && read.ptr + 1 == end && count >= 0 && count <= 100'000'000) {
    constexpr std::int64_t kSecond = 1000;
    switch (*read.ptr) {
      case 's':
        return now_ms - count * kSecond;
      case 'm':
        return now_ms - count * 60 * kSecond;
      case 'h':
        return now_ms - count * 3600 * kSecond;
      case 'd':
        return now_ms - count * 86'400 * kSecond;
      default:
        return std::nullopt;
    }
  }
  std::string time = text;
  if (const auto colon = time.find(':'); colon == 1 || colon == 2) {  // of today
    const std::time_t now = now_ms / 1000;
    std::tm parts{};
    char day[16];
    if (::localtime_r(&now, &parts) != nullptr && std::strftime(day, sizeof day, "%F ", &parts) > 0)
      time = day + text;
  }
  if (time.size() > 10 && time[10] == 'T') time[10] = ' ';
  for (const char* form : {"%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    std::tm parts{};
    const char* rest = ::strptime(time.c_str(), form, &parts);
    if (rest == nullptr || *rest != '\0') continue;
    parts.tm_isdst = -1;
    const std::time_t seconds = ::mktime(&parts);
    if (seconds > 0) return static_cast<std::int64_t>(seconds) * 1000;
  }
  return std::nullopt;
}

std::optional<std::int64_t> time_of_line(const std::string& line) {
  std::tm parts{};
  const char* rest = ::strptime(line.c_str(), "%Y-%m-%d %H:%M:%S", &parts);
  if (rest == nullptr) return std::nullopt;
  int ms = 0;
  if (*rest == '.' && std::from_chars(rest + 1, rest + 4, ms).ptr == rest + 4) rest += 4;
  int zone = 0;
  const bool has_zone =
      (*rest == '+' || *rest == '-') && std::from_chars(rest + 1, rest + 5, zone).ptr == rest + 5;
  parts.tm_isdst = -1;
  std::int64_t seconds = has_zone ? ::timegm(&parts) : ::mktime(&parts);
  if (has_zone) seconds -= (*rest == '-' ? -1 : 1) * (zone / 100 * 3600 + zone % 100 * 60);
  return seconds * 1000 + ms;
}

namespace {

std::int64_t now_ms() {
  using std::chrono::duration_cast, std::chrono::milliseconds, std::chrono::system_clock;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace

CLI::Validator since_time() {
  return CLI::Validator(
      [](std::string& text) {
        return parse_since(text, now_ms())
                   ? std::string()
                   : "'" + text + "' is no time, such as 10m, 13:00 or 2026-01-31 13:00";
      },
      "");
}

std::int64_t read_since(const std::string& text) {
  return text.empty() ? 0 : parse_since(text, now_ms()).value_or(0);
}

void add_head_options(CLI::App& command, std::string& folder, std::string& address) {
  command
      .add_option(
          "--folder", folder,
          "Where the keys are [default: $TROUPE_FOLDER, $XDG_STATE_HOME/troupe or ~/.local/state/troupe]")
      ->check(not_empty());
  command.add_option("--address", address, "HOST:PORT of the head [default: as remembered]")
      ->check(host_and_port());
}

void add_output_option(CLI::App& command, std::string& output) {
  command.add_option("-o,--output", output, "table, or json for programs")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}));
}

}  // namespace troupe::cli
