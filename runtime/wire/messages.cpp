#include "runtime/wire/messages.hpp"

#include <algorithm>

namespace troupe::wire {
namespace {

template <std::size_t I = 0>
Result<Control> decode_as(std::uint64_t number, ByteView body) {
  if constexpr (I < std::variant_size_v<Control>) {
    if (number != I) return decode_as<I + 1>(number, body);
    auto message = decode<std::variant_alternative_t<I, Control>>(body);
    if (!message) return message.error();
    return Control(*std::move(message));
  } else {
    return ErrorInfo{ErrorCode::kBadInput, "refused a control message", "number " + std::to_string(number) + " is unknown",
                     "both sides must run the same build"};
  }
}

}  // namespace

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
  const auto bytes = encode_header(header);
  Bytes frame(bytes.size() + body.size());
  std::copy(body.begin(), body.end(), std::copy(bytes.begin(), bytes.end(), frame.begin()));
  return frame;
}

Result<Control> decode_control(const FrameHeader& header, ByteView body) { return decode_as(header.id, body); }

}  // namespace troupe::wire
