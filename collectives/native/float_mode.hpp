/// How a thread rounds, and whether it takes subnormals for 0. An operation is computed as the thread that
/// launched it does it then, whoever adds.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace troupe::collectives {

#if defined(__x86_64__)
class FloatMode {
 public:
  /// Of this thread.
  static FloatMode here() { return FloatMode(_mm_getcsr() & kBits); }
  bool is_here() const { return (_mm_getcsr() & kBits) == bits_; }
  /// Makes it this thread's.
  void apply() const { _mm_setcsr((_mm_getcsr() & ~kBits) | bits_); }

 private:
  explicit FloatMode(unsigned bits) : bits_(bits) {}
  static constexpr unsigned kBits = 0xe040;  ///< flush to zero, rounding, denormals are zero
  unsigned bits_;
};
#else
class FloatMode {
 public:
  static FloatMode here() {
    FloatMode mode;
    std::fegetenv(&mode.environment_);
    return mode;
  }
  bool is_here() const { return false; }  // it cannot be compared
  void apply() const { std::fesetenv(&environment_); }

 private:
  std::fenv_t environment_;
};
#endif

/// Makes a mode this thread's for a scope.
class InFloatMode {
 public:
  explicit InFloatMode(const FloatMode& mode) : before_(mode), changed_(!mode.is_here()) {
    if (!changed_) return;
    before_ = FloatMode::here();
    mode.apply();
  }
  ~InFloatMode() {
    if (changed_) before_.apply();
  }
  InFloatMode(const InFloatMode&) = delete;
  InFloatMode& operator=(const InFloatMode&) = delete;

 private:
  FloatMode before_;
  const bool changed_;
};

}  // namespace troupe::collectives
