/// A job's checkpoints: those that it can go back to, which of them this run wrote, and which is the best.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/train/driver/driver_types.hpp"

namespace troupe::train {

/// A value. Not thread-safe.
///
/// Invariants: the steps do not fall from the oldest to the newest. A checkpoint of another run goes only
/// when this run has written as many as are kept; the best one stays.
class CheckpointList {
 public:
  /// `resumed`: of earlier runs, oldest first. `keep`: of this run.
  CheckpointList(std::vector<CheckpointInfo> resumed, int keep) : all_(std::move(resumed)), keep_(keep) {}

  bool empty() const { return all_.empty(); }
  /// Oldest first. The best may be older than these.
  const std::vector<CheckpointInfo>& all() const { return all_; }
  /// REQUIRES: !empty().
  const CheckpointInfo& newest() const;
  const CheckpointInfo& oldest() const;
  /// Steps of the state that anybody can get without a trainer: the newest checkpoint's, or the first.
  std::int64_t newest_step() const { return all_.empty() ? 0 : all_.back().step; }
  /// Steps in the newest checkpoint that is a file, or kNoState.
  std::int64_t saved_step() const;

  /// One was written, and all trainers hold what it holds. Where older ones may go now: the path of the
  /// oldest that stays.
  std::optional<std::string> accept(const CheckpointInfo& written, bool is_best);
  /// One could not be written.
  void note_failure() { ++failed_; }
  int failed() const { return failed_; }
  /// Of these the one of this many steps is the best, unless it is no file.
  void set_best(std::int64_t step);
  /// Path of the best by keep_best; empty: none.
  const std::string& best() const { return best_; }

  /// Nobody can read the newest, for these reasons. True if it was the best: none is known to be that then.
  bool drop_newest(const std::string& reasons);
  /// Those that were dropped, each with its reasons.
  const std::string& unusable() const { return unusable_; }

  /// The state of a generation comes from the newest one (or from none of them).
  void load(bool from_newest);
  /// The one that a generation's state was loaded from, once: the generation runs now.
  std::optional<CheckpointInfo> take_loaded();

 private:
  std::vector<CheckpointInfo> all_;  ///< not known to be unusable, oldest first
  int keep_;
  std::vector<std::string> written_;  ///< paths of those that this run wrote, oldest first
  std::optional<CheckpointInfo> loading_;
  std::string best_;
  std::string unusable_;
  int failed_ = 0;
};

}  // namespace troupe::train
