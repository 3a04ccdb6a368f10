#include "runtime/wire/messages.hpp"

#include <string>

namespace troupe::wire {
namespace {

template <class M>
Result<Control> decode_as(ByteView body) {
  auto message = decode<M>(body);
  if (!message) return std::move(message).error();
  return Control(*std::move(message));
}

template <class... M>
Result<Control> decode_number(std::uint64_t number, ByteView body, const std::variant<M...>*) {
  using Decode = Result<Control> (*)(ByteView);
  constexpr Decode kDecoders[] = {&decode_as<M>...};
  if (number < sizeof...(M)) return kDecoders[number](body);
  return ErrorInfo{ErrorCode::kBadInput, "refused a control message",
                   "number " + std::to_string(number) + " is unknown",
                   "run the same version of troupe on both sides"};
}

}  // namespace

Control::Control() = default;
Control::Control(const Control&) = default;
Control::Control(Control&&) noexcept = default;
Control& Control::operator=(const Control&) = default;
Control& Control::operator=(Control&&) noexcept = default;
Control::~Control() = default;

Bytes encode_control(const Control& message, FrameHeader& header) {
  header.kind = FrameKind::kControl;
  header.id = message.index();
  return std::visit([](const auto& alternative) { return encode(alternative); }, message);
}

Bytes control_frame(const Control& message, ProcessAddress from, ProcessAddress to) {
  FrameHeader header;
  header.from = from;
  header.to = to;
  const Bytes body = encode_control(message, header);
  return whole_frame(header, body);
}

Result<Control> decode_control(const FrameHeader& header, ByteView body) {
  return decode_number(header.id, body, static_cast<const Control::Variant*>(nullptr));
}

}  // namespace troupe::wire
