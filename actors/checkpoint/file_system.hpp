/// The disk as a checkpoint store sees it: a seam, so that a test can crash it at every operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::checkpoint {

/// A file that is being written. Closed by its destructor; durable only after sync().
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  /// Writes all of `bytes` behind what is there.
  virtual Result<void> append(std::span<const std::byte> bytes) = 0;
  /// fsync(2): what was appended survives a crash once this returns. REQUIRES: not called again once it
  /// failed.
  virtual Result<void> sync() = 0;
};

/// A file that is being read. Closed by its destructor. What is written to the file meanwhile may be seen.
class InputFile {
 public:
  virtual ~InputFile() = default;
  /// When it was opened.
  virtual std::uint64_t size() const = 0;
  /// All of `into`, from `offset` on. An error, too, where the file ends before that by now.
  virtual Result<void> read(std::uint64_t offset, std::span<std::byte> into) = 0;
};

/// Every error is kIo, naming the operation and the path; reads may also give kLimit.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Makes a folder and those above it; none is an error if it is there.
  virtual Result<void> make_folder(const std::string& folder) = 0;
  /// The names in a folder, in no order, without "." and "..".
  virtual Result<std::vector<std::string>> list(const std::string& folder) = 0;
  /// A new, empty file (mode 0644 less umask). An error if the name is taken, by a symbolic link too.
  virtual Result<std::unique_ptr<OutputFile>> create(const std::string& path) = 0;
  /// All of a regular file of at most `max_bytes`; a symbolic link is refused.
  virtual Result<std::vector<std::byte>> read(const std::string& path, std::size_t max_bytes) = 0;
  /// The same bytes, piece by piece: where the system can do that they take no memory.
  virtual Result<std::unique_ptr<InputFile>> open(const std::string& path, std::size_t max_bytes);
  /// Atomically gives `from` the name `to`; durable after sync_folder. An error, EEXIST, if the name is
  /// taken.
  virtual Result<void> rename(const std::string& from, const std::string& to) = 0;
  virtual Result<void> remove(const std::string& path) = 0;
  /// fsync(2) of a folder: names given and taken in it survive a crash once this returns.
  virtual Result<void> sync_folder(const std::string& folder) = 0;
  /// Bytes that this user may still write there, if that can be told.
  virtual std::optional<std::uint64_t> free_bytes(const std::string& folder) = 0;
};

/// The machine's disk. Thread-safe if `progress` is.
class PosixFileSystem final : public FileSystem {
 public:
  /// `progress` is called about every 16 MiB of a long read. What it throws ends the read.
  explicit PosixFileSystem(std::function<void()> progress = {}) : progress_(std::move(progress)) {}

  Result<void> make_folder(const std::string& folder) override;
  Result<std::vector<std::string>> list(const std::string& folder) override;
  Result<std::unique_ptr<OutputFile>> create(const std::string& path) override;
  Result<std::vector<std::byte>> read(const std::string& path, std::size_t max_bytes) override;
  Result<std::unique_ptr<InputFile>> open(const std::string& path, std::size_t max_bytes) override;
  Result<void> rename(const std::string& from, const std::string& to) override;
  Result<void> remove(const std::string& path) override;
  Result<void> sync_folder(const std::string& folder) override;
  std::optional<std::uint64_t> free_bytes(const std::string& folder) override;

 private:
  std::function<void()> progress_;
};

}  // namespace troupe::checkpoint
