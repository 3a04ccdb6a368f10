/// A process that forked has a child with its links, rings and answers, but without its threads. What the
/// child read there, its parent would never get.
#pragma once

#include <cstdint>

namespace troupe {

/// Remembers the process that made it. Light: a check is a comparison.
class ForkGuard {
 public:
  ForkGuard();
  bool is_in_child() const;
  /// Throws BadConfig in a child that was forked since, naming `what` it may not use.
  void check(const char* what = "session") const;

 private:
  std::uint32_t forks_;
};

}  // namespace troupe
