#include "tests/simulation/pipe.hpp"

#include "runtime/wire/messages.hpp"

namespace troupe::sim {
namespace {

/// By number; see wire::Control.
constexpr const char* kControls[] = {
    "configure", "hello",        "~pulse",      "spawn ask",    "spawn cancel",  "lease ask",
    "job ask",   "job end",      "ring ask",    "region ask",   "nodes ask",     "find ask",
    "answer",    "region drop",  "kill ask",    "ring offer",   "start actor",   "stop actor",
    "actor up",  "actor not up", "actor ended", "process down", "node down",     "node lost",
    "output",    "leave",        "head config", "node config",  "ready",         "not ready",
    "to head",   "from head",    "package ask", "package part", "peer lease ask"};

}  // namespace

const char* label_of(const wire::FrameHeader& header) {
  switch (header.kind) {
    case wire::FrameKind::kCall:
      return (header.flags & wire::kFlagOneWay) != 0 ? "one-way call" : "call";
    case wire::FrameKind::kReply:
      return (header.flags & wire::kFlagError) != 0 ? "error" : "reply";
    case wire::FrameKind::kSpawn:
      return "construct";
    case wire::FrameKind::kMonitor:
      return "monitor";
    case wire::FrameKind::kStop:
      return "stop";
    case wire::FrameKind::kCredit:
      return "~credit";
    case wire::FrameKind::kControl:
      break;
  }
  return header.id < std::size(kControls) ? kControls[header.id] : "control";
}

Sent Pipe::send(const wire::FrameHeader& header, wire::ByteView body, std::vector<UniqueFd>& fds) {
  if (closed_ || !from_.alive) return Sent::kClosed;
  if (!has_room()) {
    refused_ = true;
    return Sent::kFull;
  }
  const std::size_t bytes = wire::kHeaderBytes + body.size();
  bytes_ += bytes;
  auto message =
      std::make_shared<Message>(Message{header, {body.begin(), body.end()}, std::exchange(fds, {})});
  world_.send(from_, to_, label_of(header), [self = shared_from_this(), message, bytes] {
    self->bytes_ -= bytes;
    if (self->bytes_ <= self->limit_ / 2 && std::exchange(self->refused_, false)) {
      self->world_.after(self->from_, self->world_.between(Duration{0}, microseconds(50)), "~room", [self] {
        if (!self->closed_) self->on_room();
      });
    }
    if (!self->closed_) self->deliver(std::move(*message));
  });
  return Sent::kQueued;
}

}  // namespace troupe::sim
