/// Where ranks leave a few words for each other before they are connected. Any key-value store will do.
#pragma once

#include <string>

#include "runtime/core/clock.hpp"

namespace troupe::collectives {

/// Thread-safe as far as its users are: one thread a group.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  /// `value` is bytes, at most some kilobytes a rank. A key is set once.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The value, as soon as somebody has set it; throws Timeout when nobody has for `limit`.
  virtual std::string get(const std::string& key, Duration limit) = 0;
};

}  // namespace troupe::collectives
