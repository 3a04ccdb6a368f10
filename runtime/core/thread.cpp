#include "runtime/core/thread.hpp"

#include <utility>

#include "runtime/core/futex.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe {

Thread::Thread(std::function<void()> body) {
  if (ThreadFloor* floor = ThreadFloor::current()) {
    simulated_ = floor->start(std::move(body));
  } else {
    thread_ = start_thread(std::move(body));
  }
}

Thread Thread::quiet(std::function<void()> body) {
  return ThreadFloor::current() != nullptr ? Thread(std::move(body))
                                           : Thread(start_quiet_thread(std::move(body)));
}

void Thread::join() {
  if (simulated_ == nullptr) return thread_.join();
  simulated_->join();
  simulated_.reset();
}

void sleep_for(Duration time) {
  const MonotonicClock clock;
  std::atomic<std::uint32_t> nobody_wakes{0};
  for (const Instant until = clock.now() + time; clock.now() < until;)
    futex_wait(nobody_wakes, 0, until - clock.now());
}

}  // namespace troupe
