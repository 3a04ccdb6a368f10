/// How a thread rounds, and whether it takes subnormals for 0: who adds up for another has to do it alike.
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
  /// Makes it this thread's.
  void apply() const {
    const unsigned now = _mm_getcsr();
    if ((now & kBits) != bits_) _mm_setcsr((now & ~kBits) | bits_);
  }

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
  void apply() const { std::fesetenv(&environment_); }

 private:
  std::fenv_t environment_;
};
#endif

}  // namespace troupe::collectives
