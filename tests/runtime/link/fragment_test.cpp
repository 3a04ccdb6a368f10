#include "runtime/link/fragment.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "tests/runtime/link/messages.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::size_t kPacketBytes = 1000;

std::vector<wire::Bytes> cut(std::uint32_t number, std::uint64_t id, std::size_t body_bytes,
                             std::size_t packet_bytes = kPacketBytes) {
  const wire::FrameHeader header = numbered_header(1, id);
  const wire::HeaderBytes head = wire::encode_header(header);
  const wire::Bytes body = body_of(header, body_bytes);
  std::vector<wire::Bytes> packets;
  for (Cutter cutter(number, head, body, packet_bytes); !cutter.done(); cutter.advance()) {
    const Packet packet = cutter.next();
    REQUIRE(packet.size() <= packet_bytes);
    packet.copy_to(packets.emplace_back(packet.size()).data());
  }
  return packets;
}

std::string why(const Result<Joiner::Fed>& fed) {
  return fed ? std::string() : fed.error().message();
}

}  // namespace

TEST_CASE("a message of any length comes out as it went in, from packets of any length") {
  for (const std::size_t packet_bytes :
       {kMinPacketBytes, kMinPacketBytes + 1, kPacketBytes, std::size_t{65536}}) {
    for (const bool whole_frames : {false, true}) {
      Joiner joiner({whole_frames ? Joiner::Takes::kFrame : Joiner::Takes::kBody, false, nullptr});
      std::uint32_t number = 0;
      for (const std::size_t bytes : {0, 1, 911, 912, 913, 65447, 65448, 65449, 300'000}) {
        CAPTURE(packet_bytes, bytes);
        ++number;
        const auto packets = cut(number, number, bytes, packet_bytes);
        for (std::size_t i = 0; i + 1 < packets.size(); ++i)
          REQUIRE(*joiner.feed(packets[i]) == Joiner::Fed::kMore);
        REQUIRE(*joiner.feed(packets.back()) == Joiner::Fed::kMessage);
        const wire::FrameHeader header = joiner.header();
        CHECK(header.id == number);
        REQUIRE(joiner.body().size() == bytes);
        CHECK(body_belongs(header, joiner.body()));
        const wire::Bytes taken = joiner.take();
        REQUIRE(taken.size() == bytes + (whole_frames ? wire::kHeaderBytes : 0));
        CHECK(body_belongs(header, wire::ByteView(taken).last(bytes)));
        if (whole_frames) CHECK(wire::decode_header(taken)->id == number);
      }
    }
  }
}

TEST_CASE("the layout is the one that docs/links.md gives") {
  const auto packets = cut(0x01020304, 1, 911 + 500);
  REQUIRE(packets.size() == 2);
  const auto at = [&](std::size_t i) { return static_cast<unsigned>(packets[0][i]); };
  const std::vector<unsigned> expected = {
      0x54, 0x4c, wire::kProtocolVersion, 2, 4, 3, 2, 1, 0xf3, 1, 0, 0, 0, 0, 0, 0};
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(at(i) == expected[i]);
  CHECK(packets[1][3] == std::byte{3});
  CHECK(std::memcmp(packets[1].data() + 8, "\0\0\0\0\0\0\0\0", 8) == 0);
}

// The story: two nodes under load, fragments were lost, and what was left of two replies was glued together:
// 10 of 7,500 calls were answered with another call's bytes. What does not continue what is pending closes
// the link.
TEST_CASE("a packet that is lost, comes twice or overtakes closes the link") {
  const std::uint64_t seed = SystemRandom().next();
  CAPTURE(seed);
  SeededRandom random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<wire::Bytes> packets;
    for (std::uint32_t number = 1; number <= 4; ++number) {
      for (auto& packet : cut(number, number, random.below(5000))) packets.push_back(std::move(packet));
    }
    const std::size_t at = random.below(packets.size());
    bool last_lost = false;
    switch (random.below(3)) {
      case 0:
        last_lost = at + 1 == packets.size();
        packets.erase(packets.begin() + static_cast<long>(at));
        break;
      case 1:
        packets.insert(packets.begin() + static_cast<long>(at), packets[at]);
        break;
      default: {
        const std::size_t other = random.below(packets.size());
        if (other == at) continue;
        std::swap(packets[at], packets[other]);
      }
    }
    Joiner joiner;
    std::uint64_t whole = 0;
    bool closed = false;
    for (const wire::Bytes& packet : packets) {
      const auto fed = joiner.feed(packet);
      if (!fed) {
        closed = true;
        CHECK(fed.error().message().find("came") != std::string::npos);
        CHECK_FALSE(joiner.feed(packet).ok());  // and stays closed
        break;
      }
      if (*fed != Joiner::Fed::kMessage) continue;
      // Before the fault, messages are whole and in order.
      CHECK(joiner.header().id == ++whole);
      CHECK(body_belongs(joiner.header(), joiner.body()));
    }
    // The loss of the very last packet is what a goodbye shows.
    if (last_lost) closed = !joiner.feed(goodbye_packet(4, "end")).ok() || joiner.pending() || whole < 4;
    CHECK(closed);
  }
}

TEST_CASE("a packet that fits by its lengths, but is of another message, closes the link") {
  auto packets = cut(1, 1, 2000);
  REQUIRE(packets.size() == 3);
  packets[1][4] = std::byte{9};  // its message's number
  Joiner joiner;
  REQUIRE(joiner.feed(packets[0]).ok());
  CHECK(why(joiner.feed(packets[1])).find("a part of message 9 came while message 1 lacked") !=
        std::string::npos);
}

TEST_CASE("a goodbye says how far the peer came, and why it ends") {
  Joiner joiner;
  REQUIRE(joiner.feed(cut(1, 1, 10)[0]).ok());
  SECTION("after its last message") {
    REQUIRE(*joiner.feed(goodbye_packet(1, "key \x1b[31mrevoked\n" + std::string(600, 'x'))) ==
            Joiner::Fed::kGoodbye);
    CHECK(joiner.reason().substr(0, 18) == "key ?[31mrevoked?x");
    CHECK(joiner.reason().size() == kMaxReasonBytes);
    CHECK_FALSE(joiner.feed(cut(2, 2, 10)[0]).ok());
  }
  SECTION("in the middle of one") {
    REQUIRE(joiner.feed(cut(2, 2, 5000)[0]).ok());
    CHECK(*joiner.feed(goodbye_packet(2, "")) == Joiner::Fed::kGoodbye);
    CHECK_FALSE(joiner.pending());
  }
  SECTION("after one that never came") {
    CHECK(why(joiner.feed(goodbye_packet(2, ""))).find("after message 2, but the last that came is 1") !=
          std::string::npos);
  }
}

TEST_CASE("a link that begins with a hello takes nothing before it, and no second one") {
  Joiner joiner({Joiner::Takes::kFrame, true, nullptr});
  const PacketHeader hello = hello_packet();
  SECTION("a message first") {
    CHECK(why(joiner.feed(cut(1, 1, 0)[0])).find("before the hello") != std::string::npos);
  }
  SECTION("two hellos") {
    REQUIRE(*joiner.feed(hello) == Joiner::Fed::kHello);
    CHECK_FALSE(joiner.feed(hello).ok());
  }
  SECTION("a hello of another version: both are named") {
    PacketHeader other = hello;
    other[2] = std::byte{77};
    const auto fed = joiner.feed(other);
    REQUIRE_FALSE(fed.ok());
    CHECK(fed.error().code == ErrorCode::kRefused);
    CHECK(fed.error().why ==
          "the peer's protocol version is 77, ours is " + std::to_string(wire::kProtocolVersion));
  }
  SECTION("no hello where none belongs") {
    Joiner plain;
    CHECK_FALSE(plain.feed(hello).ok());
  }
}

// A peer that announces 64 MiB and sends 1 KB must not make us take 64 MiB.
TEST_CASE("memory grows with what has arrived, and lengths are refused at the first packet") {
  auto packets = cut(1, 1, wire::kMaxBodyBytes, 65536);
  JoinBudget budget{200'000};
  Joiner joiner({Joiner::Takes::kBody, false, &budget});
  REQUIRE(joiner.feed(packets[0]).ok());
  REQUIRE(joiner.feed(packets[1]).ok());
  CHECK(budget.left < 200'000 - 120'000);
  REQUIRE(joiner.feed(packets[2]).ok());
  const auto fed = joiner.feed(packets[3]);
  REQUIRE_FALSE(fed.ok());
  CHECK(fed.error().code == ErrorCode::kLimit);
  CHECK(budget.left == 200'000);  // given back

  for (const std::uint64_t remaining : {std::uint64_t{wire::kMaxBodyBytes}, ~std::uint64_t{0}}) {
    wire::Bytes packet = packets[0];
    std::memcpy(packet.data() + 8, &remaining, sizeof remaining);
    const auto too_long = Joiner().feed(packet);
    REQUIRE_FALSE(too_long.ok());
    CHECK(too_long.error().code == ErrorCode::kLimit);
  }
  // An empty packet in the middle would let a message never end.
  Joiner endless;
  REQUIRE(endless.feed(packets[0]).ok());
  wire::Bytes empty(packets[0].begin(), packets[0].begin() + kPacketHeaderBytes);
  empty[3] = std::byte{3};
  CHECK_FALSE(endless.feed(empty).ok());
}

TEST_CASE("the budget is whole again when every message was taken") {
  JoinBudget budget{10 << 20};
  {
    Joiner joiner({Joiner::Takes::kFrame, false, &budget});
    for (std::uint32_t number = 1; number <= 20; ++number) {
      for (const auto& packet : cut(number, number, 1 << 20)) REQUIRE(joiner.feed(packet).ok());
      if (number % 2 == 0) joiner.take();  // a message that nobody takes counts until the next
    }
    CHECK(budget.left == 10 << 20);
    REQUIRE(joiner.feed(cut(21, 21, 1 << 20)[0]).ok());
  }
  CHECK(budget.left == 10 << 20);
}
