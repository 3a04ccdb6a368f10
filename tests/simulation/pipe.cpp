#include "tests/simulation/pipe.hpp"

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/core/type_name.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe::sim {
namespace {

template <class... Messages>
std::vector<std::string> names_of(const std::variant<Messages...>* /*of*/) {
  const auto name = [](std::string_view type) { return std::string(type.substr(type.rfind(':') + 1)); };
  return {name(type_name<Messages>())...};
}

/// The names of wire::Control's types, by the message's number. "~": too frequent for a trace.
const char* control_name(std::uint64_t number) {
  static const auto names = names_of(static_cast<const wire::Control*>(nullptr));
  if (number >= names.size()) return "control";
  return names[number] == "Pulse" ? "~Pulse" : names[number].c_str();
}

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
  return control_name(header.id);
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
