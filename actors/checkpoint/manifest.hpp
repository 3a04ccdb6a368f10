/// The manifest of a checkpoint: a small JSON file, written last, that says what the checkpoint is and
/// vouches for every byte of it.
///
/// ```json
/// {
///   "format": "troupe checkpoint",
///   "version": 2,
///   "job": {"logical_ranks": 4, "seed": 7, "micro_batch": 25, "struct": "Digits{\"mnist\", 0.02}",
///           "struct_sha256": "<64 hex>", "train_size": 60000, "test_size": 10000, "numerics": "libtorch
///           ..."},
///   "position": {"epoch": 1, "global_step": 1200},
///   "state_hash": "<64 hex>",
///   "file": {"name": "checkpoint-00000003.safetensors", "bytes": 123456, "sha256": "<64 hex>"},
///   "metadata": {"key": "value"},
///   "sha256": "<64 hex: of the object above without this key, as compact JSON>"
/// }
/// ```
/// There is one way to write a manifest down: a decoded one must encode to the bytes it came from, so a flip
/// of any byte is found, in white space too.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "actors/checkpoint/safetensors.hpp"
#include "runtime/core/result.hpp"

namespace troupe::checkpoint {

/// All that a result depends on. Another number of trainers may resume a checkpoint, another identity may
/// not.
struct JobIdentity {
  std::uint64_t logical_ranks = 0;
  std::uint64_t seed = 0;
  std::uint64_t micro_batch = 0;
  std::string job;         ///< the user's struct, for people
  std::string job_sha256;  ///< of the struct, encoded
  std::uint64_t train_size = 0;
  std::uint64_t test_size = 0;
  std::string numerics;               ///< how its trainers compute
  std::string sampling;               ///< a hash of how its samples are drawn
  std::uint64_t validation_size = 0;  ///< 0: no validation set; the manifest does not name it then
  bool operator==(const JobIdentity&) const = default;
};

/// What `written` and `ours` differ in, with both sides, or nothing if they are the same job. What `ours`
/// does not know yet (no size, no numerics) is not compared.
std::optional<std::string> difference(const JobIdentity& written, const JobIdentity& ours);

/// How far the job has come.
struct JobPosition {
  std::uint64_t epoch = 0;        ///< of the next step
  std::uint64_t global_step = 0;  ///< steps committed since the start of the job
  bool operator==(const JobPosition&) const = default;
};

/// The file that a manifest vouches for.
struct ManifestFile {
  std::string name;  ///< a plain name beside the manifest
  std::uint64_t bytes = 0;
  std::string sha256;
  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  JobIdentity job;
  JobPosition position;
  std::string state_hash;  ///< SHA-256 of the TrainState, as the trainers compute it
  ManifestFile file;
  Metadata metadata;  ///< the job's own strings
  bool operator==(const Manifest&) const = default;
};

inline constexpr int kManifestVersion = 2;
/// Longest manifest that is written or read.
inline constexpr std::size_t kMaxManifestBytes = std::size_t{1} << 20;

/// The bytes of the file. Errors: kBadInput (a hash that is none, text that is not UTF-8), kLimit.
Result<std::string> encode_manifest(const Manifest& manifest);

/// Decodes the file called `name`. Total; every error (kCorrupt; kRefused for a version of the future) names
/// `name` and what is wrong.
Result<Manifest> decode_manifest(std::string_view name, std::span<const std::byte> bytes);

}  // namespace troupe::checkpoint
