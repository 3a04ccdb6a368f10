/// Moves the native groups of this process while its thread waits for something else than a Work.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace troupe::collectives {

/// For as long as it lives, a thread looks a thousand times a second; there is none where nothing is in
/// flight when it is made.
class MoveMeanwhile {
 public:
  MoveMeanwhile();
  ~MoveMeanwhile();
  MoveMeanwhile(const MoveMeanwhile&) = delete;
  MoveMeanwhile& operator=(const MoveMeanwhile&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ends_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace troupe::collectives
