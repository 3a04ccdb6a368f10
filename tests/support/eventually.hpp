/// Waits for what another thread or process brings about.
#pragma once

#include <chrono>
#include <stdexcept>
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

/// Yields the core until `condition` is true. Throws after two minutes: a thread or rank that waits for
/// another which has failed would keep all of the test for ever.
template <class Condition>
void yield_until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("it has waited for two minutes");
    std::this_thread::yield();
  }
}

}  // namespace troupe::test
