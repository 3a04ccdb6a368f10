/// What `troupe serve run FILE.toml` applies to a cluster: a program, and settings of the deployments that it
/// serves.
///
///     program = "build/serve"
///     num_cpus = 1
///     [deployments.digits]
///     weights = "digits.safetensors"
///     replicas = "1:4"
///     max_batch = 32
///
/// The program gets it in its environment (kServingVariable); serve::run takes what it says of its deployment
/// before what the code says. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/fields.hpp"

namespace troupe::config {

inline constexpr const char* kServingVariable = "TROUPE_SERVE_CONFIG";
/// The submitted job that serves, whose place the program takes (ServeOptions::take_over).
inline constexpr const char* kTakeOverVariable = "TROUPE_SERVE_TAKE_OVER";
/// It travels in the program's environment.
inline constexpr std::size_t kMostServingBytes = std::size_t{32} << 10;

/// As "1:4", or one number.
struct ReplicaRange {
  int min = 1, max = 1;
  bool operator==(const ReplicaRange&) const = default;
};
template <>
struct Kind<ReplicaRange> {
  static std::string type() { return "MIN:MAX, or one number, up to 1000"; }
  static std::string set(const Value& value, ReplicaRange& field);
  static std::optional<Value> get(const ReplicaRange& field);
  static Value read(std::string_view text) { return read_number(text); }
};

/// Settings of a deployment; what is not there is as the program has it. Names are those of ServeOptions.
struct ServingEntry {
  std::optional<std::string>
      weights;  ///< a checkpoint's manifest or a safetensors file, on the program's node
  std::optional<ReplicaRange> replicas;
  std::optional<std::string> host;
  std::optional<int> port;
  std::optional<bool> on_every_node;
  std::optional<std::string> tls_certificate;
  std::optional<std::string> tls_key;
  std::optional<std::int64_t> max_batch;
  std::optional<std::int64_t> max_queue;
  std::optional<Duration> batch_wait;
  std::optional<double> cpus;
  std::optional<int> threads;
  std::optional<Duration> start_timeout;
  std::optional<Duration> health_timeout;
  std::optional<Duration> drain_timeout;
  std::optional<Duration> downscale_delay;
};

/// The submitted job: as JobSpec.
struct ServingProgram {
  std::string name;  ///< of the job; default: the file's name without its end
  std::string program;
  std::vector<std::string> args;
  std::string working_dir;
  std::string node_dir;
  double num_cpus = 0;
  double num_gpus = 0;
  int retries = 0;
  int priority = 0;
  std::string queue;
};

struct ServingFile {
  ServingProgram job;
  std::map<std::string, ServingEntry> deployments;
};

/// 1 to 64 letters, digits, '-', '_' and '.': a part of a URL's path.
bool is_deployment_name(const std::string& name);

/// `file`: its path, for messages and the job's name. `wrong_path` says why the file at a path cannot be
/// used, or nothing; left out, nobody looks. Errors: kBadInput, kBadConfig, kLimit.
Result<ServingFile> parse_serving_file(
    std::string_view text, const std::string& file,
    const std::function<std::string(const std::string& path)>& wrong_path = {});
/// The same text in its shortest form: parse_serving_file reads it back. Errors: kLimit, where that would
/// not.
Result<std::string> to_toml(const ServingFile& file);
/// Relative paths count from `folder`: the program's (unless the job has a folder of its own), the weights',
/// the certificates'.
void resolve_paths(ServingFile& file, const std::string& folder);

/// What makes `wanted` of `now`.
struct ServingChanges {
  struct Change {
    std::string deployment;
    std::optional<ReplicaRange> replicas;
    std::optional<std::string> weights;
  };
  std::vector<Change> running;         ///< that the running program can do
  std::vector<std::string> restarted;  ///< for which it must start again: "digits: max_batch was 64, is 32"
};
ServingChanges changes_between(ServingFile now, ServingFile wanted);

}  // namespace troupe::config
