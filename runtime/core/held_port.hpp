/// A TCP port that nobody else is given while rank 0 has not listened yet.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/fd.hpp"

namespace troupe {

/// A bound socket that never listens. With SO_REUSEADDR on both, rank 0 binds and listens beside it; the
/// kernel gives the port to nobody who asks for any.
class HeldPort {
 public:
  HeldPort() = default;
  /// `port` 0: any free one. Errors: kUnavailable: somebody listens there; kIo.
  static Result<HeldPort> hold(std::uint16_t port);
  std::uint16_t port() const { return port_; }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

}  // namespace troupe
