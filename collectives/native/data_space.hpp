/// Which runs of a rank's data are taken: what reserve() gives out and takes back.
///
/// Pure: ranks that take and give the same, in the same order, have the same offsets. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace troupe::collectives {

class DataSpace {
 public:
  /// Invariant: `free_` and `taken_` are disjoint, and together all of `bytes`; no two free runs touch.
  explicit DataSpace(std::size_t bytes) {
    if (bytes > 0) free_[0] = bytes;
  }

  struct Run {
    std::size_t offset = 0;
    bool was_used = false;  ///< it may have the contents of a run that was given back
  };
  /// The first run of `bytes` that is free; nothing: there is none. REQUIRES: bytes > 0.
  std::optional<Run> take(std::size_t bytes);
  /// How many bytes are taken at `offset`; 0: no run begins there.
  std::size_t bytes_at(std::size_t offset) const;
  /// Frees the run at `offset`. REQUIRES: there is one.
  void give(std::size_t offset);

  std::size_t left() const;
  std::size_t largest() const;  ///< of the free runs

 private:
  std::map<std::size_t, std::size_t> free_, taken_;  ///< bytes, by offset
  std::size_t used_ = 0;                             ///< no run has reached beyond this
};

}  // namespace troupe::collectives
