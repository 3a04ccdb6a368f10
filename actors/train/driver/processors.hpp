/// Whether what loaders compute with LibTorch has the same bits in all of them, and in a run that was
/// resumed.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace troupe::train {

/// An exact job trains on one kind of processor: another trainer is refused. Loaders may run anywhere, as
/// most data have the same bits everywhere, so of these the first that differs is told. Pure, not
/// thread-safe.
class Processors {
 public:
  /// What to tell of a process, if anything. `fingerprint`: see numerics_fingerprint(); empty: nobody knows.
  std::optional<std::string> compare(const std::string& who, const std::string& fingerprint) {
    // Behind it stand the threads, which a loader has one of, and a trainer's GPU.
    std::string kind = fingerprint.substr(0, std::min(fingerprint.rfind("threads "), fingerprint.size()));
    if (kind.empty() || kind == kind_ || told_) return std::nullopt;
    if (kind_.empty()) {
      kind_ = std::move(kind);
      who_ = who;
      return std::nullopt;
    }
    told_ = true;
    return who + " computes with '" + kind + "', and " + who_ + " with '" + kind_ +
           "': what get() and collate() compute with LibTorch may have other bits in each (run "
           "loaders on one kind of processor; data that only move bytes are the same everywhere)";
  }

 private:
  std::string kind_;
  std::string who_;
  bool told_ = false;
};

}  // namespace troupe::train
