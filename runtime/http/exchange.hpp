/// What an Answer and the connection that waits for it share.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>

#include "runtime/http/message.hpp"

namespace troupe::http {

struct Exchange {
  explicit Exchange(std::function<void(Response)> taker) : take(std::move(taker)) {}
  /// The client is gone, or its time is up: what waits for it is told, once.
  void leave();
  /// Nobody is told from here on.
  void settle();

  const std::function<void(Response)> take;
  std::atomic<bool> left{false};
  std::mutex mutex;
  std::function<void()> on_left;  ///< under the mutex
  bool settled = false;           ///< under the mutex
};

}  // namespace troupe::http
