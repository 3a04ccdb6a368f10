/// A process that forked has a child with its links, rings and answers, but without its threads. What the
/// child read there, its parent would never get.
#pragma once

#include <cstdint>
#include <string_view>

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

/// Around user code. A child that was forked in it and comes back from it ends here, with a line on standard
/// error: what follows (the answer, the next message, the thread's end) is its parent's.
class ForkScope {
 public:
  /// `where` names the code in that line. REQUIRES: it outlives this.
  explicit ForkScope(std::string_view where) : where_(where) {}
  ~ForkScope() {
    if (guard_.is_in_child()) end_child();
  }
  ForkScope(const ForkScope&) = delete;
  ForkScope& operator=(const ForkScope&) = delete;

 private:
  [[noreturn]] void end_child() const;

  const ForkGuard guard_;
  const std::string_view where_;
};

}  // namespace troupe
