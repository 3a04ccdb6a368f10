#include "scheduler/cli/resource_words.hpp"

#include <charconv>
#include <cmath>
#include <memory>

#include "runtime/wire/resources.hpp"

namespace troupe::cli {
namespace {

std::pair<std::string, std::string> halves(const std::string& text) {
  const auto at = text.find('=');
  return at == std::string::npos ? std::pair(text, std::string())
                                 : std::pair(text.substr(0, at), text.substr(at + 1));
}

std::optional<double> plain_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return read.ec == std::errc() && read.ptr == end && !text.empty() ? std::optional(value) : std::nullopt;
}

std::string amount_wrong(const std::string& text) {
  const auto [name, amount] = halves(text);
  const auto value = plain_number(amount);
  if (!value) return "'" + text + "' is no NAME=AMOUNT, such as tpu=2";
  return cluster::wrong_about(cluster::other_resources(0, {{name, *value}}, {}));
}

std::string label_wrong(const std::string& text) {
  if (text.find('=') == std::string::npos) return "'" + text + "' is no KEY=VALUE, such as zone=a";
  const auto [key, value] = halves(text);
  return cluster::wrong_about(cluster::other_resources(0, {}, {{key, value}}));
}

/// In bytes, however many.
std::optional<double> size_of(const std::string& text) {
  const auto unit_at = text.find_first_not_of("0123456789.");
  const auto value = plain_number(text.substr(0, unit_at));
  if (!value) return std::nullopt;
  const std::string unit = unit_at == std::string::npos ? "" : text.substr(unit_at);
  double scale = 1;
  if (!unit.empty() && unit != "B") {
    const auto step = std::string("KMGT").find(unit[0]);
    const std::string rest = unit.substr(1);
    if (step == std::string::npos || (!rest.empty() && rest != "iB" && rest != "B")) return std::nullopt;
    scale = std::pow(1024.0, static_cast<double>(step + 1));
  }
  return *value * scale;
}

std::string size_wrong(const std::string& text) {
  if (parse_bytes(text)) return {};
  return size_of(text).value_or(-1) > 0
             ? "'" + text + "' is more than the " + std::to_string(cluster::kMaxMemoryBytes >> 40) +
                   " TiB that a node may have"
             : "'" + text + "' is no size, such as 512MiB or 2GiB";
}

/// Each word by itself, and no name twice: the last one would win in silence.
CLI::Validator once_each(std::string (*wrong)(const std::string&)) {
  const auto seen = std::make_shared<std::map<std::string, std::string>>();
  return CLI::Validator(
      [seen, wrong](std::string& text) {
        std::string why = wrong(text);
        const auto [at, is_new] = seen->try_emplace(halves(text).first, text);
        if (why.empty() && !is_new)
          why = at->first + " is given twice, as '" + at->second + "' and '" + text + "': give it once";
        return why;
      },
      "");
}

}  // namespace

std::optional<std::int64_t> parse_bytes(const std::string& text) {
  const auto bytes = size_of(text);
  if (!bytes || !(*bytes <= static_cast<double>(cluster::kMaxMemoryBytes))) return std::nullopt;
  return static_cast<std::int64_t>(*bytes);
}

std::map<std::string, double> ResourceWords::amounts() const {
  std::map<std::string, double> all;
  for (const std::string& text : resources) {
    const auto [name, amount] = halves(text);
    all[name] = plain_number(amount).value_or(0);
  }
  return all;
}

std::map<std::string, std::string> ResourceWords::label_map() const {
  std::map<std::string, std::string> all;
  for (const std::string& text : labels) all.insert_or_assign(halves(text).first, halves(text).second);
  return all;
}

std::int64_t ResourceWords::bytes_or(std::int64_t otherwise) const {
  return memory.empty() ? otherwise : parse_bytes(memory).value_or(otherwise);
}

std::vector<std::string> ResourceWords::words() const {
  std::vector<std::string> all;
  if (!memory.empty()) all.insert(all.end(), {"--memory", memory});
  for (const std::string& text : resources) all.insert(all.end(), {"--resource", text});
  for (const std::string& text : labels) all.insert(all.end(), {"--label", text});
  return all;
}

void add_resource_options(CLI::App& command, ResourceWords& words, const ResourceHelp& help) {
  command.add_option("--memory", words.memory, help.memory)
      ->check(CLI::Validator([](std::string& text) { return size_wrong(text); }, ""));
  command.add_option("--resource", words.resources, help.resource)
      ->take_all()
      ->check(once_each(amount_wrong));
  if (*help.label == 0) return;
  command.add_option("--label", words.labels, help.label)->take_all()->check(once_each(label_wrong));
}

}  // namespace troupe::cli
