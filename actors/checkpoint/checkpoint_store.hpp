/// Checkpoints in a folder: saved whole or not at all, loaded only when every byte is right.
///
/// `checkpoint-00000003.safetensors` holds the tensors, `checkpoint-00000003.json` is its manifest
/// (manifest.hpp). The number counts saves, not steps, so what was saved last is newest, whatever job wrote
/// into the folder before. A save writes the tensors to a temporary file, syncs and renames it, syncs the
/// folder, and then does the same for the manifest: a crash at any point leaves the checkpoints that were
/// there, and the new one whole or absent. Nothing is deleted but by prune().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/file_system.hpp"
#include "actors/checkpoint/manifest.hpp"
#include "actors/checkpoint/part_hash.hpp"
#include "actors/checkpoint/safetensors.hpp"
#include "actors/checkpoint/sha256.hpp"

namespace troupe::checkpoint {

struct StoreOptions {
  std::string folder;
  /// Called about every 16 MiB of a save or a load. What it throws ends it; an unfinished save leaves
  /// nothing.
  std::function<void()> progress{};
};

/// What to save. The tensors' bytes must not change during the call.
/// `bytes_of`: gives them, where it is set, once each in the order of the file; the tensors' own are looked
/// at for their size alone.
struct SaveRequest {
  JobIdentity job;
  JobPosition position;
  std::string state_hash;  ///< 64 hexadecimal digits
  std::vector<TensorView> tensors;
  Metadata metadata;  ///< goes into the manifest
  std::function<std::span<const std::byte>(const TensorView&)> bytes_of{};
};

/// A checkpoint that is durable, and was read back.
struct SavedCheckpoint {
  std::string manifest_path;
  std::uint64_t bytes = 0;  ///< of the tensors' file
};

/// A manifest in the folder, and what it says if it can be read. Its tensors were not looked at.
struct ListedCheckpoint {
  std::string manifest_path;
  Result<Manifest> manifest;
};

/// A checkpoint whose every byte was checked. Movable: the views stay good.
struct LoadedCheckpoint {
  std::string manifest_path;
  Manifest manifest;
  std::vector<std::byte> file;      ///< what the tensors' views point into
  std::vector<TensorView> tensors;  ///< their data is aligned to 8 bytes at least
  LoadedCheckpoint() = default;
  LoadedCheckpoint(LoadedCheckpoint&&) = default;
  LoadedCheckpoint& operator=(LoadedCheckpoint&&) = default;
  LoadedCheckpoint(const LoadedCheckpoint&) = delete;
  LoadedCheckpoint& operator=(const LoadedCheckpoint&) = delete;
  ~LoadedCheckpoint() = default;
};

/// A checkpoint whose every byte was read and checked, but is in memory no longer: its tensors are read
/// again, one at a time. Not thread-safe.
class OpenCheckpoint {
 public:
  const Manifest& manifest() const { return manifest_; }
  /// In the order of the file, with their sizes and no bytes.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  /// Those of one of them, until the next call. Errors: kIo; kCorrupt where they are not what was checked.
  Result<std::span<const std::byte>> bytes_of(const TensorView& tensor);

 private:
  friend class CheckpointStore;
  struct Place {
    std::uint64_t offset = 0;
    Digest128 digest;
  };
  Result<void> check(const std::function<void()>& progress);
  std::span<std::byte> memory(std::size_t bytes);
  ErrorInfo corrupt(std::string why) const;

  Manifest manifest_;
  std::string path_;  ///< of the tensors' file
  std::unique_ptr<InputFile> file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, Place, std::less<>> places_;  ///< by the tensor's name
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
};

/// Not thread-safe. REQUIRES: one store at a time writes to a folder (the driver of a job's newest
/// generation).
class CheckpointStore {
 public:
  /// Throws BadConfig for an empty folder name. `files` must outlive the store.
  CheckpointStore(FileSystem& files, StoreOptions options);

  /// Makes the folder and writes a file there on trial: called at a job's start, so that a folder that cannot
  /// be written is an error before the first step and not after the first epoch. Errors: kIo.
  Result<void> prepare();

  /// Saves, and reads back what the disk has. On an error (kIo with path and free space; kCorrupt; kBadInput
  /// and kLimit from the tensors) every older checkpoint is as it was, and training may go on.
  Result<SavedCheckpoint> save(const SaveRequest& request);

  /// Every manifest, oldest first. Errors: kIo when the folder cannot be listed.
  Result<std::vector<ListedCheckpoint>> list();
  /// The checkpoint with this manifest, whole or an error. The path must be one that save() gave for this
  /// folder.
  Result<LoadedCheckpoint> load_manifest(const std::string& manifest_path);
  /// The same without its tensors in memory. The store's FileSystem outlives it.
  Result<OpenCheckpoint> open_manifest(const std::string& manifest_path);

  /// Deletes what is older than the checkpoint with this manifest, but for the one with the manifest `spared`
  /// (empty: none): manifests first. Errors: kIo for what could not be deleted, kRefused for a path that is
  /// not of this folder.
  Result<void> prune(const std::string& oldest_kept, const std::string& spared = {});
  /// Deletes the checkpoint with this manifest. Errors: kIo, and kRefused for a path that is not of this
  /// folder.
  Result<void> discard(const std::string& manifest_path);

 private:
  std::string path(const std::string& name) const { return options_.folder + "/" + name; }
  Result<std::uint64_t> number_of(const std::string& manifest_path) const;
  /// Bytes on the disk before a save.
  struct Space {
    std::uint64_t free = 0;
    std::uint64_t needed = 0;
  };
  ErrorInfo cannot_save(const ErrorInfo& cause, std::optional<Space> space = {}) const;
  using PartAt = std::function<std::span<const std::byte>(std::size_t)>;
  /// Names that a save has given, and nobody else has: those are another writer's.
  using Made = std::vector<std::string>;
  Result<void> write_whole(const std::string& name, std::size_t parts, const PartAt& part_at, Sha256& digest,
                           Made& made);
  Result<void> write_pair(const SaveRequest& request, const SafetensorsLayout& layout, std::uint64_t number,
                          Made& made);
  void discard(const Made& made);
  std::string digest_of(std::span<const std::byte> bytes) const;
  Result<Manifest> read_manifest(std::uint64_t number);
  Result<OpenCheckpoint> open(std::uint64_t number);

  FileSystem& files_;
  StoreOptions options_;
};

}  // namespace troupe::checkpoint
