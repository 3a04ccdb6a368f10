#include "runtime/config/serving_file.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "runtime/config/settings.hpp"
#include "runtime/core/endpoint.hpp"

namespace troupe::config {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDeployments = "deployments.";
constexpr int kMostReplicas = 1000;

bool read_count(std::string_view digits, int& number) {
  const char* const end = digits.data() + digits.size();
  const auto got = std::from_chars(digits.data(), end, number);
  return got.ec == std::errc() && got.ptr == end && number >= 0 && number <= kMostReplicas;
}

/// That a server of HTTP can listen at.
bool is_address(const std::string& host) {
  in_addr v4{};
  return host == "localhost" || ::inet_pton(AF_INET, host.c_str(), &v4) == 1 ||
         is_ipv6(host.substr(0, host.find('%')));
}

std::string table_of(const std::string& deployment) {
  return std::string(kDeployments) + deployment;
}

/// The first field that no deployment can have, and why.
std::optional<std::pair<const char*, std::string>> wrong_field(const ServingEntry& entry) {
  const auto below = [](const auto& field, auto least) { return field && *field < least; };
  if (entry.host && !is_address(*entry.host))
    return {
        {"host",
         "it is not a numeric address: give 127.0.0.1, 0.0.0.0 for every one of the program's machine, or "
         "one of them"}};
  if (entry.port && (*entry.port < 0 || *entry.port > 65535))
    return {{"port", "it is 0 (any free one) to 65535"}};
  if (below(entry.max_batch, 1)) return {{"max_batch", "it is 1 or more"}};
  if (below(entry.max_queue, 1)) return {{"max_queue", "it is 1 or more"}};
  if (entry.max_batch && below(entry.max_queue, *entry.max_batch))
    return {{"max_queue", "it is less than max_batch"}};
  if (below(entry.cpus, 0.0)) return {{"cpus", "it is 0 or more"}};
  if (below(entry.threads, 1)) return {{"threads", "it is 1 or more"}};
  for (const auto& [field, time] : {std::pair{"start_timeout", entry.start_timeout},
                                    {"health_timeout", entry.health_timeout},
                                    {"downscale_delay", entry.downscale_delay}}) {
    if (time && *time <= Duration{0}) return {{field, "it is more than 0 seconds"}};
  }
  for (const auto& [field, time] :
       {std::pair{"batch_wait", entry.batch_wait}, {"drain_timeout", entry.drain_timeout}}) {
    if (below(time, Duration{0})) return {{field, "it is 0 seconds or more"}};
  }
  return std::nullopt;
}

/// A table that is none of the file's, but nearly `deployments`.
std::optional<ErrorInfo> wrong_table(const Setting& setting) {
  const auto dot = setting.name.find('.');
  const std::string table = setting.name.substr(0, dot);
  if (setting.name + "." == kDeployments && setting.value)
    return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + setting.where, "'deployments' is a table",
                     "write [deployments.NAME] for each that the program serves"};
  if (table + "." == kDeployments || (dot == std::string::npos && setting.value) ||
      !nearest(table, {"deployments"}))
    return std::nullopt;
  return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + setting.where,
                   "there is no table '" + table + "'; the nearest is 'deployments'",
                   "write [deployments.NAME] for each that the program serves"};
}

/// Of the program, and then of each deployment.
Entries entries_of(ServingFile& file) {
  Entries all;
  add_fields(all, "", file.job);
  for (auto& [name, entry] : file.deployments) add_fields(all, table_of(name), entry);
  return all;
}

}  // namespace

bool is_deployment_name(const std::string& name) {
  const bool plain = !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  return plain && name != "." && name != "..";
}

std::string Kind<ReplicaRange>::set(const Value& value, ReplicaRange& field) {
  const auto* whole = std::get_if<std::int64_t>(&value.is);
  const auto* is = std::get_if<std::string>(&value.is);
  if (whole == nullptr && is == nullptr) return wants(value, type());
  const std::string text = whole != nullptr ? std::to_string(*whole) : *is;
  const auto colon = text.find(':');
  ReplicaRange range;
  const bool good =
      read_count(std::string_view(text).substr(0, colon), range.min) &&
      (colon == std::string::npos || read_count(std::string_view(text).substr(colon + 1), range.max));
  if (colon == std::string::npos) range.max = range.min;
  if (!good || range.min > range.max || range.max == 0) return "'" + text + "' is not " + type();
  field = range;
  return {};
}

std::optional<Value> Kind<ReplicaRange>::get(const ReplicaRange& field) {
  if (field.min == field.max) return Value{std::int64_t{field.min}};
  return Value{std::to_string(field.min) + ":" + std::to_string(field.max)};
}

Result<ServingFile> parse_serving_file(std::string_view text, const std::string& file,
                                       const std::function<std::string(const std::string&)>& wrong_path) {
  if (text.size() > kMostServingBytes)
    return ErrorInfo{ErrorCode::kLimit, "cannot read " + file, "it has more than 32 KiB",
                     "name a file of deployments"};
  const auto settings = parse_toml(text, file);
  if (!settings) return settings.error();
  ServingFile made;
  made.job.name = fs::path(file).stem().string();
  for (const Setting& setting : *settings) {
    if (auto wrong = wrong_table(setting)) return std::move(*wrong);
    if (!setting.name.starts_with(kDeployments)) continue;
    std::string name = setting.name.substr(kDeployments.size());
    const auto dot = name.rfind('.');
    if (setting.value && dot == std::string::npos)
      return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + setting.where,
                       "'" + setting.name + "' is no table", "write [deployments.NAME], and its fields"};
    if (setting.value) name.resize(dot);
    if (!is_deployment_name(name))
      return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + setting.where,
                       "'" + name + "' is no name of a deployment: it is a part of a URL's path",
                       "use 1 to 64 letters, digits, '-', '_' and '.'"};
    made.deployments[name];
  }
  if (auto wrong = apply_settings(*settings, entries_of(made))) {
    wrong->todo = "docs/serving.md has the names, and what each takes";
    return std::move(*wrong);
  }
  const auto refuse = [&](const std::string& deployment, const std::string& field, const std::string& why) {
    const std::string name = table_of(deployment) + "." + field;
    const auto at = std::find_if(settings->begin(), settings->end(),
                                 [&](const Setting& setting) { return setting.name == name; });
    return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + at->where,
                     name + " = " + to_text(*at->value) + ": " + why, "see docs/serving.md"};
  };
  for (const auto& [name, entry] : made.deployments) {
    if (const auto wrong = wrong_field(entry)) return refuse(name, wrong->first, wrong->second);
    for (const auto& [field, path] : {std::pair{"weights", entry.weights},
                                      {"tls_certificate", entry.tls_certificate},
                                      {"tls_key", entry.tls_key}}) {
      const std::string why = path && wrong_path ? wrong_path(*path) : "";
      if (!why.empty()) return refuse(name, field, why);
    }
  }
  if (made.job.program.empty())
    return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + file, "it names no program",
                     "write program = \"PATH\" before the first table"};
  if (made.deployments.empty())
    return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + file, "it names no deployment",
                     "write [deployments.NAME] for each that the program serves"};
  return made;
}

Result<std::string> to_toml(const ServingFile& file) {
  ServingFile copy = file;
  std::string text;
  const auto add = [&](const Entries& entries) {
    for (const Entry& entry : entries) {
      if (!entry.value.empty()) text += entry.name + " = " + entry.value + "\n";
    }
  };
  Entries entries;
  add_fields(entries, "", copy.job);
  add(entries);
  for (auto& [name, entry] : copy.deployments) {
    text += "[deployments." + to_text(Value{name}) + "]\n";
    entries.clear();
    add_fields(entries, "", entry);
    add(entries);
  }
  if (text.size() > kMostServingBytes)
    return ErrorInfo{ErrorCode::kLimit, "cannot give its settings to the program",
                     "with paths from the root on they have " + std::to_string(text.size()) +
                         " bytes, and at most 32 KiB travel in its environment",
                     "use shorter paths, or a file and a program for each part of the deployments"};
  return text;
}

void resolve_paths(ServingFile& file, const std::string& folder) {
  const auto resolve = [&](std::string& path) {
    if (!path.empty()) path = (fs::path(folder) / path).lexically_normal().string();
  };
  ServingProgram& job = file.job;
  if (job.working_dir.empty() && job.node_dir.empty() && job.program.find('/') != std::string::npos)
    resolve(job.program);
  resolve(job.working_dir);
  for (auto& [name, entry] : file.deployments) {
    for (auto* path : {&entry.weights, &entry.tls_certificate, &entry.tls_key}) {
      if (*path) resolve(**path);
    }
  }
}

ServingChanges changes_between(ServingFile now, ServingFile wanted) {
  ServingChanges changes;
  for (auto& [name, entry] : wanted.deployments) {
    const auto at = now.deployments.find(name);
    if (at == now.deployments.end()) continue;
    ServingChanges::Change change{name, {}, {}};
    ServingEntry& before = at->second;
    if (entry.replicas && before.replicas != entry.replicas)
      change.replicas = before.replicas = entry.replicas;
    if (entry.weights && before.weights != entry.weights) change.weights = before.weights = entry.weights;
    if (change.replicas || change.weights) changes.running.push_back(std::move(change));
  }
  // What is left is the program's.
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const Entry& entry : entries_of(now)) values[entry.name].first = entry.value;
  for (const Entry& entry : entries_of(wanted)) values[entry.name].second = entry.value;
  const auto of = [](const std::string& value) { return value.empty() ? std::string("left out") : value; };
  for (const auto& [name, entry] : now.deployments) {
    if (!wanted.deployments.contains(name)) changes.restarted.push_back("deployment " + name + " is gone");
  }
  for (const auto& [name, entry] : wanted.deployments) {
    if (!now.deployments.contains(name)) changes.restarted.push_back("deployment " + name + " is new");
  }
  for (const auto& [name, value] : values) {
    const auto& [before, after] = value;
    if (before != after) changes.restarted.push_back(name + " was " + of(before) + ", is " + of(after));
  }
  return changes;
}

}  // namespace troupe::config
