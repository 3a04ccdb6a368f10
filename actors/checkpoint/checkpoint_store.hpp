/// Checkpoints in a folder: saved whole or not at all, loaded only when every byte is right.
///
/// `checkpoint-00000003.safetensors` holds the tensors, `checkpoint-00000003.json` is its manifest
/// (manifest.hpp). The number counts saves, not steps, so what was saved last is newest, whatever job wrote
/// into the folder before. A save writes the tensors to a temporary file, syncs and renames it, syncs the
/// folder, and then does the same for the manifest: a crash at any point leaves the checkpoints that were
/// there, and the new one whole or absent. Only then are the oldest deleted, manifests first.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/file_system.hpp"
#include "actors/checkpoint/manifest.hpp"
#include "actors/checkpoint/safetensors.hpp"

namespace troupe::checkpoint {

struct StoreOptions {
  std::string folder;
  int keep_last = 3;  ///< checkpoints that stay, at least 1
};

/// What to save. The tensors' bytes must not change during the call.
struct SaveRequest {
  JobPosition job;
  std::string state_hash;  ///< 64 hexadecimal digits
  std::vector<TensorView> tensors;
  Metadata metadata;  ///< goes into the manifest
};

/// A checkpoint that is durable.
struct SavedCheckpoint {
  std::string manifest_path;
  std::uint64_t bytes = 0;            ///< of the tensors' file
  std::vector<std::string> warnings;  ///< old files that could not be deleted
};

/// A checkpoint whose every byte was checked. Movable: the views stay good.
struct LoadedCheckpoint {
  std::string manifest_path;
  Manifest manifest;
  std::vector<std::byte> bytes;       ///< what the tensors' views point into
  std::vector<TensorView> tensors;    ///< their data is aligned to 8 bytes at least
  std::vector<std::string> warnings;  ///< newer checkpoints that were passed over: file and reason
  LoadedCheckpoint() = default;
  LoadedCheckpoint(LoadedCheckpoint&&) = default;
  LoadedCheckpoint& operator=(LoadedCheckpoint&&) = default;
  LoadedCheckpoint(const LoadedCheckpoint&) = delete;
  LoadedCheckpoint& operator=(const LoadedCheckpoint&) = delete;
  ~LoadedCheckpoint() = default;
};

/// Not thread-safe. REQUIRES: one store at a time writes to a folder (the driver of a job's newest
/// generation).
class CheckpointStore {
 public:
  /// Throws BadConfig for an empty folder name or keep_last below 1. `files` must outlive the store.
  CheckpointStore(FileSystem& files, StoreOptions options);

  /// Makes the folder and writes a file there on trial: called at a job's start, so that a folder that cannot
  /// be written is an error before the first step and not after the first epoch. Errors: kIo.
  Result<void> prepare();

  /// Saves. On an error (kIo with path and free space; kBadInput and kLimit from the tensors) every older
  /// checkpoint is as it was, and training may go on.
  Result<SavedCheckpoint> save(const SaveRequest& request);

  /// The newest checkpoint that is whole. Errors: kUnavailable when there is none at all, kCorrupt when there
  /// are some and none is whole, kIo when the folder cannot be listed.
  Result<LoadedCheckpoint> load_latest();
  /// The checkpoint with this manifest, whole or an error. The path must be one that save() gave for this
  /// folder.
  Result<LoadedCheckpoint> load_manifest(const std::string& manifest_path);

 private:
  std::string path(const std::string& name) const { return options_.folder + "/" + name; }
  ErrorInfo cannot_save(const ErrorInfo& cause, std::uint64_t needed_bytes) const;
  Result<void> write_whole(const std::string& name, std::span<const std::span<const std::byte>> parts);
  Result<void> write_pair(const SaveRequest& request, const SafetensorsLayout& layout, std::uint64_t number);
  void discard_orphan(std::uint64_t number);
  Result<LoadedCheckpoint> load(std::uint64_t number);
  std::vector<std::string> prune(std::uint64_t newest);

  FileSystem& files_;
  StoreOptions options_;
};

}  // namespace troupe::checkpoint
