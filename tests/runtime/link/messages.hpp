// Messages whose contents say whose they are: a byte that is lost, glued in from elsewhere or out of place is
// seen.
#pragma once

#include <string>

#include "runtime/core/random.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe::test {

/// The header of message `id` of `sender`.
inline wire::FrameHeader numbered_header(std::uint64_t sender, std::uint64_t id) {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kReply;
  header.from = {{1}, {sender}};
  header.id = id;
  return header;
}

/// The body that belongs to a header: a stream of its own for each (sender, id).
inline wire::Bytes body_of(const wire::FrameHeader& header, std::size_t bytes) {
  SeededRandom random(mix(mix(7, header.from.process.value), header.id));
  wire::Bytes body(bytes);
  random.fill(body);
  return body;
}

inline bool body_belongs(const wire::FrameHeader& header, wire::ByteView body) {
  const wire::Bytes right = body_of(header, body.size());
  return std::equal(body.begin(), body.end(), right.begin(), right.end());
}

inline wire::Bytes numbered_frame(std::uint64_t sender, std::uint64_t id, std::size_t body_bytes) {
  const wire::FrameHeader header = numbered_header(sender, id);
  return wire::whole_frame(header, body_of(header, body_bytes));
}

}  // namespace troupe::test
