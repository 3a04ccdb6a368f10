/// The manifest of a checkpoint: a small JSON file, written last, that says what the checkpoint is and
/// vouches for every byte of it.
///
/// ```json
/// {
///   "format": "troupe checkpoint",
///   "version": 1,
///   "job": {"logical_ranks": 4, "seed": 7, "micro_batch": 25, "epoch": 1, "global_step": 1200},
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
#include <span>
#include <string>
#include <string_view>

#include "actors/checkpoint/safetensors.hpp"
#include "runtime/core/result.hpp"

namespace troupe::checkpoint {

/// Which job, and how far it has come. Logical ranks, seed and micro-batch are the job's identity: another
/// number of trainers may resume, another identity may not.
struct JobPosition {
  std::uint64_t logical_ranks = 0;
  std::uint64_t seed = 0;
  std::uint64_t micro_batch = 0;
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
  JobPosition job;
  std::string state_hash;  ///< SHA-256 of the TrainState, as the trainers compute it
  ManifestFile file;
  Metadata metadata;  ///< the job's own strings
  bool operator==(const Manifest&) const = default;
};

inline constexpr int kManifestVersion = 1;
/// Longest manifest that is written or read.
inline constexpr std::size_t kMaxManifestBytes = std::size_t{1} << 20;

/// The bytes of the file. Errors: kBadInput (a hash that is none, text that is not UTF-8), kLimit.
Result<std::string> encode_manifest(const Manifest& manifest);

/// Decodes the file called `name`. Total; every error (kCorrupt; kRefused for a version of the future) names
/// `name` and what is wrong.
Result<Manifest> decode_manifest(std::string_view name, std::span<const std::byte> bytes);

}  // namespace troupe::checkpoint
