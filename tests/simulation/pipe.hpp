/// One direction of the socket between a process and its node: whole messages in order, bounded in bytes.
#pragma once

#include <functional>
#include <memory>

#include "runtime/link/link.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

/// What a frame is called in the story.
const char* label_of(const wire::FrameHeader& header);

class Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  Pipe(World& world, Process& from, Process& to, std::size_t limit)
      : world_(world), from_(from), to_(to), limit_(limit) {}

  std::function<void(Message)> deliver;  ///< in `to`
  std::function<void()> on_room;         ///< in `from`, after a kFull: half of the queue is free

  Sent send(const wire::FrameHeader& header, wire::ByteView body) {
    std::vector<UniqueFd> none;
    return send(header, body, none);
  }
  /// Takes `fds` along, unless it is full.
  Sent send(const wire::FrameHeader& header, wire::ByteView body, std::vector<UniqueFd>& fds);
  bool has_room() const { return bytes_ < limit_; }
  /// An end is gone.
  void close() { closed_ = true; }

 private:
  World& world_;
  Process& from_;
  Process& to_;
  const std::size_t limit_;
  std::size_t bytes_ = 0;
  bool refused_ = false;
  bool closed_ = false;
};

}  // namespace troupe::sim
