// Frames and values on the wire: whole again after the way, and total for bytes from anywhere.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "runtime/core/random.hpp"
#include "runtime/wire/messages.hpp"

using namespace troupe;
using wire::Bytes;
using wire::ByteView;

namespace {

struct Sample {
  std::int64_t number = -7;
  double real = -0.0;
  std::string text = "text";
  std::vector<std::uint8_t> small{1, 2, 255};
  std::map<std::string, int> map{{"a", 1}};
  std::optional<bool> maybe;
  std::pair<std::int32_t, float> pair{3, 2.0F};
};

wire::FrameHeader some_header() {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCall;
  header.from = {{1}, {2}};
  header.to = {{3}, {4}};
  header.id = 5;
  header.actor = {6};
  header.method = 7;
  return header;
}

wire::Control a_control() {
  return wire::RegionAsk{42, "group/1", 4096, "rank 0", true};
}

}  // namespace

TEST_CASE("a value is the same after the way, floating point bit for bit") {
  Sample value;
  value.maybe = true;
  const auto back = wire::decode<Sample>(wire::encode(value)).value();
  CHECK(back.number == value.number);
  CHECK(std::signbit(back.real));
  CHECK(back.text == value.text);
  CHECK(back.small == value.small);
  CHECK(back.map == value.map);
  CHECK(back.maybe == value.maybe);
  CHECK(back.pair == value.pair);
  for (const double real : {2.0, -0.0, 1e-310, std::numeric_limits<double>::infinity()}) {
    CHECK(std::bit_cast<std::uint64_t>(wire::decode<double>(wire::encode(real)).value()) ==
          std::bit_cast<std::uint64_t>(real));
  }
}

TEST_CASE("a value of another shape or range is an error") {
  CHECK_FALSE(wire::decode<std::uint8_t>(wire::encode(256)).ok());
  CHECK_FALSE(wire::decode<std::uint32_t>(wire::encode(-1)).ok());
  CHECK_FALSE(wire::decode<std::string>(wire::encode(1)).ok());
  CHECK_FALSE(wire::decode<Sample>(wire::encode(std::vector<int>{1, 2})).ok());
  Bytes longer = wire::encode(1);
  longer.push_back(std::byte{0});
  CHECK_FALSE(wire::decode<int>(longer).ok());
  CHECK_FALSE(wire::decode<int>(Bytes{}).ok());
  const Bytes nested(1000, std::byte{0x91});  // arrays in arrays
  CHECK_FALSE(wire::decode<std::vector<int>>(nested).ok());
  const Bytes huge{std::byte{0xdd}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff}};
  CHECK_FALSE(wire::decode<std::vector<int>>(huge).ok());  // claims four billion elements
}

TEST_CASE("a header is 64 bytes and the same after the way") {
  const auto header = some_header();
  const auto back = wire::decode_header(wire::encode_header(header)).value();
  CHECK(back.kind == header.kind);
  CHECK(back.from == header.from);
  CHECK(back.to == header.to);
  CHECK(back.id == header.id);
  CHECK(back.actor == header.actor);
  CHECK(back.method == header.method);
  const auto bytes = wire::encode_header(header);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_FALSE(wire::decode_header(ByteView(bytes).first(size)).ok());
}

TEST_CASE("fragments of any message put it together again, also between those of others") {
  SeededRandom random(3);
  wire::Assembler assembler;
  for (const std::size_t size : {0, 1, 100, 137, 1000}) {
    Bytes body(size);
    random.fill(body);
    auto other = some_header();
    other.from = {{9}, {9}};
    other.flags = wire::kFlagMore;
    CHECK_FALSE(assembler.feed(other, Bytes(5)).has_value());
    Bytes whole;
    int times = 0;
    wire::fragment(some_header(), body, wire::kHeaderBytes + 50, [&](ByteView head, ByteView part) {
      CHECK(head.size() + part.size() <= wire::kHeaderBytes + 50);
      if (const auto got = assembler.feed(wire::decode_header(head).value(), part)) {
        whole.assign(got->begin(), got->end());
        ++times;
      }
      return true;
    });
    CHECK(times == 1);
    CHECK(whole == body);
    assembler.forget(other.from);
  }
}

TEST_CASE("a frame with any bit changed is read or refused, never worse") {
  const Bytes frame = wire::control_frame(a_control());
  int refused = 0;
  for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
    Bytes bad = frame;
    bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const auto header = wire::decode_header(bad);
    if (!header || !wire::decode_control(*header, ByteView(bad).subspan(wire::kHeaderBytes))) ++refused;
  }
  CHECK(refused > 0);
  for (std::size_t size = wire::kHeaderBytes; size < frame.size(); ++size) {
    const auto header = wire::decode_header(frame).value();
    CHECK_FALSE(
        wire::decode_control(header, ByteView(frame).subspan(wire::kHeaderBytes, size - wire::kHeaderBytes))
            .ok());
  }
}

TEST_CASE("noise is no message") {
  SeededRandom random(11);
  for (int i = 0; i < 20'000; ++i) {
    Bytes noise(static_cast<std::size_t>(random.next() % 200));
    random.fill(noise);
    CHECK_FALSE(wire::decode_header(noise).ok());
    auto header = some_header();
    header.kind = wire::FrameKind::kControl;
    header.id = random.next() % 64;
    (void)wire::decode_control(header, noise);
    (void)wire::decode<Sample>(noise);
  }
}
