/// What happens in a simulation, by its time; what is due at once happens in the order in which it was added.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/clock.hpp"

namespace troupe::serve {

class DueQueue {
 public:
  void add(Instant at, std::function<void()> what) { due_.emplace(at, std::move(what)); }
  /// When the next is due; Instant::max(): nothing is.
  Instant next() const { return due_.empty() ? Instant::max() : due_.begin()->first; }
  /// REQUIRES: something is due.
  void run_next() {
    const auto first = due_.extract(due_.begin());
    first.mapped()();
  }

 private:
  std::multimap<Instant, std::function<void()>> due_;
};

/// One a line.
inline std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

}  // namespace troupe::serve
