/// The order in which a step gathers its units: that of the step before is the guess for the next one. All
/// ranks note the same, as they have agreed on it, so all guess the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace troupe::train {

/// A value. Not thread-safe.
class GatherOrder {
 public:
  /// A step begins, behind one that was noted to its end.
  void begin() {
    before_ = std::exchange(now_, {});
    follows_ = true;
  }
  void gathered(std::size_t unit) { note(static_cast<std::int64_t>(unit)); }
  /// A leaf is through.
  void through() { note(kThrough); }
  /// The unit that the step before gathered next; none where its leaf was through, or where this step has
  /// gone another way.
  std::optional<std::size_t> next() const {
    if (!follows_ || now_.size() >= before_.size() || before_[now_.size()] == kThrough) return std::nullopt;
    return static_cast<std::size_t>(before_[now_.size()]);
  }

 private:
  static constexpr std::int64_t kThrough = -1;

  void note(std::int64_t what) {
    follows_ = follows_ && now_.size() < before_.size() && before_[now_.size()] == what;
    now_.push_back(what);
  }

  std::vector<std::int64_t> before_;  ///< in the step before
  std::vector<std::int64_t> now_;
  bool follows_ = false;  ///< so far this step has gone the same way
};

}  // namespace troupe::train
