#include "runtime/config/serving_file.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "runtime/config/settings.hpp"

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

std::string table_of(const std::string& deployment) {
  return std::string(kDeployments) + deployment;
}

/// Of the program, and then of each deployment.
Entries entries_of(ServingFile& file) {
  Entries all;
  add_fields(all, "", file.job);
  for (auto& [name, entry] : file.deployments) add_fields(all, table_of(name), entry);
  return all;
}

}  // namespace

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

Result<ServingFile> parse_serving_file(std::string_view text, const std::string& file) {
  if (text.size() > kMostServingBytes)
    return ErrorInfo{ErrorCode::kLimit, "cannot read " + file, "it has more than 32 KiB",
                     "name a file of deployments"};
  const auto settings = parse_toml(text, file);
  if (!settings) return settings.error();
  ServingFile made;
  made.job.name = fs::path(file).stem().string();
  for (const Setting& setting : *settings) {
    if (!setting.name.starts_with(kDeployments)) continue;
    std::string name = setting.name.substr(kDeployments.size());
    const auto dot = name.rfind('.');
    if (setting.value && dot == std::string::npos)
      return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + setting.where,
                       "'" + setting.name + "' is no table", "write [deployments.NAME], and its fields"};
    if (setting.value) name.resize(dot);
    made.deployments[name];
  }
  if (auto wrong = apply_settings(*settings, entries_of(made))) {
    wrong->todo = "docs/serving.md has the names, and what each takes";
    return std::move(*wrong);
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
