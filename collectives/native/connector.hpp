/// How a rank comes by connections to ranks of other hosts, without ever blocking.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "collectives/secret_stream.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"

namespace troupe::collectives {

/// A connection to another rank, or why there is none.
struct PeerConnection {
  UniqueFd socket;                  ///< a connected stream socket, whose other end has proved who it is
  std::optional<SessionKeys> keys;  ///< of what is encrypted; none: nothing is
  std::string gone{};               ///< without a socket: how it was seen that the rank listens no more
};

/// Connects with ranks that are asked for, and accepts those that ask. Two ranks have one connection, also if
/// both ask at once. Not thread-safe.
class Connector {
 public:
  Connector() = default;
  virtual ~Connector() = default;
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  /// Asks for a connection to `rank`, which is on another host. Does nothing where one is there or on its
  /// way.
  virtual void connect(int rank) = 0;
  /// Does what can be done now: what became of connections since the last call, by rank. Errors: a rank that
  /// was asked for refused, with its number; kIo where this process can have no more sockets.
  virtual Result<std::map<int, PeerConnection>> step() = 0;
  /// Readable when step() has something to do.
  virtual int fd() const = 0;
  /// Whether step() may have something to do as time passes, without a word from fd().
  virtual bool is_connecting() const = 0;
};

}  // namespace troupe::collectives
