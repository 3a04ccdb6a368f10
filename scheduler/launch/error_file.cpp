#include "scheduler/launch/error_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/core/fd.hpp"

namespace troupe::launch {
namespace {

constexpr std::size_t kMostMessageBytes = 1000;

/// For a terminal: one line, no control characters.
std::string as_line(std::string text) {
  text.resize(std::min(text.size(), kMostMessageBytes));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

/// Takes the string at "message" or at "message", "message" of the outer objects, and keeps nothing else.
struct FindMessage final : nlohmann::json_sax<nlohmann::json> {
  std::optional<std::string> message;
  std::size_t depth = 0;
  std::size_t matched = 0;  ///< objects from the outermost on in which we are in "message"

  bool here() const { return depth > 0 && matched == depth && depth <= 2; }
  bool value() {
    if (here()) matched = depth - 1;
    return true;
  }
  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool string(string_t& text) override {
    if (here() && !message) message = std::move(text);
    return value();
  }
  bool key(string_t& name) override {
    if (matched >= depth) matched = depth - 1;  // the former key's
    if (matched == depth - 1 && name == "message") matched = depth;
    return true;
  }
  bool start_object(std::size_t) override { return ++depth, true; }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override {
    // What is in a list is at no key of ours: a level that matches nothing.
    if (here()) matched = depth - 1;
    return ++depth, true;
  }
  bool end_array() override { return end(); }
  bool end() {
    --depth;
    if (matched >= depth && depth > 0) matched = depth - 1;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }
};

}  // namespace

Result<std::string> parse_error_file(std::string_view text) {
  FindMessage found;
  const bool is_json = nlohmann::json::sax_parse(text, &found);
  if (is_json && found.message) return as_line(*std::move(found.message));
  return ErrorInfo{ErrorCode::kBadInput, "cannot read an error file",
                   is_json ? "it has no message" : "it is no JSON", ""};
}

std::string read_error_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return {};
  std::string text(kMostErrorFileBytes, '\0');
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  if (got <= 0) return {};
  text.resize(static_cast<std::size_t>(got));
  auto message = parse_error_file(text);
  return message ? *message : message.error().message();
}

}  // namespace troupe::launch
