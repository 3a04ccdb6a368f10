/// Waits for what another thread or process brings about.
#pragma once

#include <chrono>
#include <thread>

namespace troupe::test {

/// Whether `condition` becomes true within `timeout`, which is for a failure alone.
template <class Condition>
bool eventually(Condition condition, std::chrono::nanoseconds timeout = std::chrono::seconds(20)) {
  for (const auto end = std::chrono::steady_clock::now() + timeout; std::chrono::steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

}  // namespace troupe::test
