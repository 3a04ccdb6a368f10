// Frames on the wire: whole again after the way, and total for bytes from anywhere.
#include <catch2/catch.hpp>

#include "runtime/wire/messages.hpp"

using namespace troupe;
using wire::Bytes;
using wire::ByteView;

namespace {

wire::FrameHeader some_header() {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCall;
  header.from = {{1}, {2}};
  header.to = {{3}, {4}};
  header.job = {8};
  header.id = 5;
  header.actor = {6};
  header.method = 7;
  return header;
}

wire::Control a_control() {
  return wire::RegionAsk{42, "group/1", 4096, "rank 0", true};
}

}  // namespace

TEST_CASE("a header is 72 bytes and the same after the way") {
  const auto header = some_header();
  const auto back = wire::decode_header(wire::encode_header(header)).value();
  CHECK(back.kind == header.kind);
  CHECK(back.from == header.from);
  CHECK(back.to == header.to);
  CHECK(back.job == header.job);
  CHECK(back.id == header.id);
  CHECK(back.actor == header.actor);
  CHECK(back.method == header.method);
  const auto bytes = wire::encode_header(header);
  CHECK(bytes.size() == 72);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_FALSE(wire::decode_header(ByteView(bytes).first(size)).ok());
}

TEST_CASE("a hop that cannot carry a call answers it as its receiver would") {
  const auto call = some_header();
  const ErrorInfo error{ErrorCode::kUnavailable, "the queue is full", "why", "todo"};
  wire::FrameHeader reply;
  const Bytes body = wire::refusal(call, error, reply);
  CHECK(reply.kind == wire::FrameKind::kReply);
  CHECK(reply.flags == (wire::kFlagError | wire::kFlagRefused));
  CHECK(reply.to == call.from);
  CHECK(reply.from == call.to);
  CHECK(reply.id == call.id);
  CHECK(wire::decode_error(body).message() == error.message());
  CHECK(wire::decode_error(Bytes{}).code == ErrorCode::kBadInput);
  auto one_way = call;
  one_way.flags = wire::kFlagOneWay;
  CHECK(wire::wants_reply(call));
  CHECK_FALSE(wire::wants_reply(one_way));
  CHECK_FALSE(wire::wants_reply(reply));
}

TEST_CASE("a control frame that is cut is refused") {
  const Bytes frame = wire::control_frame(a_control());
  const auto header = wire::decode_header(frame).value();
  for (std::size_t size = wire::kHeaderBytes; size < frame.size(); ++size) {
    CHECK_FALSE(
        wire::decode_control(header, ByteView(frame).subspan(wire::kHeaderBytes, size - wire::kHeaderBytes))
            .ok());
  }
}
