/// What the backends on other people's libraries share: memory, the abort, the exact path.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/exact_path.hpp"
#include "collectives/process_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {

/// Why a group is no good any more: the first reason stays. Thread-safe.
class AbortFlag {
 public:
  /// `group`: its name, for errors.
  explicit AbortFlag(std::string group) : group_(std::move(group)) {}
  /// Whether this was the first.
  bool set(const std::string& reason);
  bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }
  std::string reason() const;
  const std::string& group() const { return group_; }
  /// The CollectiveAborted that operations of an aborted group throw.
  CollectiveAborted error() const;
  /// Throws it, if the group was aborted.
  void check() const {
    if (is_set()) throw error();
  }

 private:
  const std::string group_;
  std::atomic<bool> set_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

/// Sets `flag` and gives the Timeout that `op` throws on `rank`.
Timeout time_out(AbortFlag& flag, int rank, const Op& op, Duration timeout, const std::string& detail);

/// A process group whose operations are a library's. Operations on nothing (count 0) complete at once.
///
/// Buffers lie in the CPU's memory.
class LibraryGroup : public ProcessGroup {
 public:
  std::string abort_reason() const override { return flag_->reason(); }

 protected:
  using ProcessGroup::ProcessGroup;

  /// Starts `op`, which moves at least one byte or is a barrier; the group is not aborted.
  virtual std::shared_ptr<Work> launch_one(const Op& op) = 0;

  AbortFlag& flag() const { return *flag_; }
  std::shared_ptr<AbortFlag> shared_flag() const { return flag_; }
  void check_has(const Op& op) const override;
  /// What reserve() gave stays until the process ends: somebody is still at it.
  void keep_memory();
  /// `op` on the path that gives the native backend's bits. REQUIRES: it is a reduction.
  std::shared_ptr<ExactReduction> exact(const Op& op) const;

 private:
  struct Release {
    void operator()(std::byte* at) const;
  };
  struct Memory {
    std::unique_ptr<std::byte, Release> at;
    std::size_t bytes = 0;
  };

  std::shared_ptr<Work> launch(std::span<const Op> operations) override;
  std::vector<std::byte*> reserve(std::size_t count, DType dtype, bool tree) override;
  Released release(std::byte* at) override;

  std::shared_ptr<AbortFlag> flag_ = std::make_shared<AbortFlag>(facts().name);
  std::map<std::byte*, Memory> memory_;
  std::vector<std::unique_ptr<std::byte, Release>> trees_memory_;
  /// Launched since there is memory_; those that have ended go with the next one.
  std::vector<std::pair<std::shared_ptr<Work>, Op>> launched_;
};

}  // namespace troupe::collectives
