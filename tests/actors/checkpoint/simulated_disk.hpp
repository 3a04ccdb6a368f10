/// A disk in memory that can fail or lose power at any operation.
///
/// It keeps what is visible and what is durable apart: bytes are durable after their file's sync, names after
/// their folder's sync. What an operating system may do to the rest in a crash, reboot() does: drop it, keep
/// it, or anything between.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/checkpoint/file_system.hpp"
#include "runtime/core/random.hpp"

namespace troupe::checkpoint::testing {

/// The power goes: thrown through the code under test.
struct PowerLoss {};

/// What happens at one operation.
enum class Trouble {
  kNone,
  kPowerLossBefore,
  kPowerLossAfter,  ///< of an append: after half of it
  kError,           ///< EIO, nothing done; of an append: disk full after half of it
};

/// What a crash leaves of that which was not synced.
enum class Leftovers {
  kNothing,     ///< neither names nor bytes
  kNames,       ///< names, but none of the bytes: the empty file after a rename
  kEverything,  ///< as if it had been synced
  kRandom,      ///< any of the names, any beginning of the bytes, the rest of them garbage
};

class SimulatedDisk final : public FileSystem {
 public:
  explicit SimulatedDisk(std::uint64_t seed) : random_(seed) {}

  /// Operations that change something, since the start.
  int operations() const { return operations_; }
  /// `trouble` happens at the operation of that number (counted from 0).
  void plan(int operation, Trouble trouble) {
    planned_ = operation;
    trouble_ = trouble;
  }

  /// The next file gets a wrong byte, and nobody is told.
  void damage_next_file() { damage_next_file_ = true; }

  void reboot(Leftovers leftovers) {
    plan(-1, Trouble::kNone);
    if (leftovers == Leftovers::kNothing) visible_ = durable_;
    if (leftovers == Leftovers::kRandom) visible_ = some_names();
    for (auto& [name, file] : visible_) {
      if (leftovers == Leftovers::kEverything) continue;
      const auto survived = leftovers == Leftovers::kRandom ? random_.below(file->bytes.size() + 1) : 0;
      const auto kept = std::max<std::size_t>(file->synced, survived);
      if (leftovers == Leftovers::kRandom && random_.below(2) == 0) {
        for (auto at = kept; at < file->bytes.size(); ++at)
          file->bytes[at] = static_cast<std::byte>(random_.next());
      } else {
        file->bytes.resize(kept);
      }
    }
    for (auto& [name, file] : visible_) file->synced = file->bytes.size();
    durable_ = visible_;
    pending_.clear();
  }

  /// The bytes behind a visible name, to damage them. REQUIRES: it is there.
  std::vector<std::byte>& bytes_of(const std::string& path) { return visible_.at(path)->bytes; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, file] : visible_) all.push_back(name.substr(name.rfind('/') + 1));
    return all;
  }

  Result<void> make_folder(const std::string& /*folder*/) override { return {}; }
  Result<std::vector<std::string>> list(const std::string& /*folder*/) override { return names(); }

  Result<std::unique_ptr<OutputFile>> create(const std::string& path) override {
    if (auto ok = begin(path); !ok) return ok.error();
    if (visible_.contains(path)) return io_error("cannot create '" + path + "'", EEXIST);
    auto file = std::make_shared<File>();
    set_name(path, file);
    end();
    return std::unique_ptr<OutputFile>(std::make_unique<Output>(*this, path, file));
  }

  Result<std::vector<std::byte>> read(const std::string& path, std::size_t max_bytes) override {
    const auto found = visible_.find(path);
    if (found == visible_.end()) return io_error("cannot open '" + path + "'", ENOENT);
    if (found->second->bytes.size() > max_bytes) {
      return ErrorInfo{ErrorCode::kLimit, "cannot read '" + path + "'", "it is too large", ""};
    }
    return found->second->bytes;
  }

  Result<void> rename(const std::string& from, const std::string& to) override {
    if (auto ok = begin(from); !ok) return ok;
    const auto found = visible_.find(from);
    if (found == visible_.end()) return io_error("cannot rename '" + from + "'", ENOENT);
    if (visible_.contains(to)) return io_error("cannot rename '" + from + "'", EEXIST);
    auto file = found->second;
    // One entry: a rename survives whole or not at all.
    pending_.push_back({{from, nullptr}, {to, file}});
    visible_.erase(from);
    visible_[to] = std::move(file);
    end();
    return {};
  }

  Result<void> remove(const std::string& path) override {
    if (auto ok = begin(path); !ok) return ok;
    if (!visible_.contains(path)) return io_error("cannot remove '" + path + "'", ENOENT);
    set_name(path, nullptr);
    end();
    return {};
  }

  Result<void> sync_folder(const std::string& folder) override {
    if (auto ok = begin(folder); !ok) return ok;
    durable_ = visible_;
    pending_.clear();
    end();
    return {};
  }

  std::optional<std::uint64_t> free_bytes(const std::string& /*folder*/) override {
    return std::uint64_t{3} << 19;
  }

 private:
  struct File {
    std::vector<std::byte> bytes;
    std::size_t synced = 0;
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;
  using NameChange = std::vector<std::pair<std::string, std::shared_ptr<File>>>;  // null: removed

  class Output final : public OutputFile {
   public:
    Output(SimulatedDisk& disk, std::string path, std::shared_ptr<File> file)
        : disk_(disk), path_(std::move(path)), file_(std::move(file)) {}
    Result<void> append(std::span<const std::byte> bytes) override {
      const auto half = bytes.first(bytes.size() / 2);
      const bool torn = disk_.is_due() && disk_.trouble_ != Trouble::kPowerLossBefore;
      if (torn) file_->bytes.insert(file_->bytes.end(), half.begin(), half.end());
      if (auto ok = disk_.begin(path_, ENOSPC); !ok) return ok;
      if (!torn) file_->bytes.insert(file_->bytes.end(), bytes.begin(), bytes.end());
      if (std::exchange(disk_.damage_next_file_, false)) file_->bytes.back() ^= std::byte{4};
      disk_.end();
      return {};
    }
    Result<void> sync() override {
      if (auto ok = disk_.begin(path_); !ok) return ok;
      file_->synced = file_->bytes.size();
      disk_.end();
      return {};
    }

   private:
    SimulatedDisk& disk_;
    std::string path_;
    std::shared_ptr<File> file_;
  };

  bool is_due() const { return operations_ == planned_; }

  Result<void> begin(const std::string& path, int error = EIO) {
    if (!is_due()) return {};
    if (trouble_ == Trouble::kPowerLossBefore) throw PowerLoss{};
    if (trouble_ == Trouble::kError) {
      ++operations_;
      return io_error("cannot write '" + path + "'", error);
    }
    return {};
  }
  void end() {
    const bool due = is_due();
    ++operations_;
    if (due && trouble_ == Trouble::kPowerLossAfter) throw PowerLoss{};
  }

  void set_name(const std::string& path, std::shared_ptr<File> file) {
    pending_.push_back({{path, file}});
    if (file) {
      visible_[path] = std::move(file);
    } else {
      visible_.erase(path);
    }
  }

  Names some_names() {
    Names names = durable_;
    for (const auto& change : pending_) {
      if (random_.below(2) == 0) continue;
      for (const auto& [path, file] : change) {
        if (file) {
          names[path] = file;
        } else {
          names.erase(path);
        }
      }
    }
    return names;
  }

  SeededRandom random_;
  int operations_ = 0;
  int planned_ = -1;
  Trouble trouble_ = Trouble::kNone;
  bool damage_next_file_ = false;
  Names visible_;
  Names durable_;
  std::vector<NameChange> pending_;
};

}  // namespace troupe::checkpoint::testing
