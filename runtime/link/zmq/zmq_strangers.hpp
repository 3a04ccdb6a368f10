/// Connections that libzmq accepted and that said no hello yet: their number is bounded. Internal to zmq/.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "runtime/core/log_limiter.hpp"

namespace troupe::zmq_link {

class Strangers {
 public:
  explicit Strangers(LogLevel level) : noise_(level) {}

  /// Accepted. Too many: the oldest that has no session is closed.
  void accepted(int fd, std::uint16_t port, Instant now);
  /// The ZAP handler refused one, and has told of it.
  void refused() { ++refused_; }
  /// It said hello.
  void admitted(int fd) { from_.erase(fd); }
  bool contains(int fd) const { return from_.contains(fd); }
  /// A descriptor was closed.
  void closed(int fd, Instant now);
  /// A quarter of the descriptors that this process may have.
  static std::size_t most();

 private:
  LimitedLog noise_;
  std::map<int, std::string> from_;  ///< by descriptor: where it comes from
  std::deque<int> oldest_first_;     ///< may hold some that are no strangers any more
  int refused_ = 0;                  ///< by the ZAP handler and not yet closed
};

}  // namespace troupe::zmq_link
