/// --memory, --resource and --label: of what a node offers, and of what a job asks for.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::cli {

struct ResourceWords {
  std::string memory;                  ///< empty: not given
  std::vector<std::string> resources;  ///< NAME=AMOUNT each
  std::vector<std::string> labels;     ///< KEY=VALUE each
  std::map<std::string, double> amounts() const;
  std::map<std::string, std::string> label_map() const;
  std::int64_t bytes_or(std::int64_t otherwise) const;
  /// As they were given, for another command.
  std::vector<std::string> words() const;
};

/// "1073741824", "512MiB", "2.5G": every unit counts 1,024 of the one below. None: it is no such size.
std::optional<std::int64_t> parse_bytes(const std::string& text);

struct ResourceHelp {
  const char* memory = "";
  const char* resource = "";
  const char* label = "";  ///< empty: there is no such option
};
void add_resource_options(CLI::App& command, ResourceWords& words, const ResourceHelp& help);
inline constexpr ResourceHelp kOfferedHelp{
    "Memory that actors may hold, as 512MiB or 2GiB [default: 7/10 of what this machine or container has]",
    "NAME=AMOUNT of a custom resource that the node has, as often as need be: tpu=2",
    "KEY=VALUE that is said of the node, as often as need be: zone=a"};

}  // namespace troupe::cli
