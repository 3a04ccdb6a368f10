/// What ThreadSanitizer has to be told about CAF, which is not compiled with it: that what was written before
/// a message was sent is seen by the turn that takes it, and by the turns after that one. Nothing in other
/// builds.
#pragma once

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace troupe {

/// Before a message is sent to the actor that `actor` stands for: any address, the same one as its turns
/// have.
inline void hand_over([[maybe_unused]] const void* actor) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(const_cast<void*>(actor));
#endif
}

/// A turn of an actor, and its destructor.
class Turn {
 public:
  explicit Turn([[maybe_unused]] const void* actor) : actor_(actor) {
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(const_cast<void*>(actor_));
#endif
  }
  ~Turn() {
    hand_over(actor_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  const void* actor_;
};

}  // namespace troupe
