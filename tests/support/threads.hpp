/// A body on several threads, each with a number.
#pragma once

#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {

/// Runs `body(i)` for 0 <= i < `count` on a thread each; what each threw (empty: nothing).
template <class Body>
std::vector<std::string> run_on_threads(std::size_t count, const Body& body) {
  std::vector<std::string> thrown(count);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&body, &thrown, i] {
      try {
        body(static_cast<int>(i));
      } catch (const std::exception& e) {
        thrown[i] = e.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

}  // namespace troupe::test
