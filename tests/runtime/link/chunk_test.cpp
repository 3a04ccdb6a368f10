#include "runtime/link/zmq/chunk.hpp"

#include <catch2/catch.hpp>

#include "runtime/core/random.hpp"
#include "runtime/link/transport.hpp"

using namespace troupe;

namespace {

std::vector<std::byte> frame_of(const Chunk& chunk) {
  std::vector<std::byte> frame(kChunkHeaderBytes);
  encode_chunk_header(chunk, std::span<std::byte, kChunkHeaderBytes>(frame.data(), kChunkHeaderBytes));
  frame.insert(frame.end(), chunk.payload.begin(), chunk.payload.end());
  return frame;
}

Chunk chunk_of(std::uint8_t flags, std::uint32_t index, std::uint64_t id,
               std::span<const std::byte> payload) {
  return {flags, index, id, payload};
}

const std::vector<std::byte> kSome(10, std::byte{1});

}  // namespace

TEST_CASE("the layout of a chunk is the one that its header describes") {
  const auto frame = frame_of(chunk_of(kChunkLast, 0x04030201, 0x0807060504030201, {}));
  const std::vector<unsigned> expected = {0x54, 0x4c, 1, 1, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8};
  REQUIRE(frame.size() == expected.size());
  for (std::size_t i = 0; i < frame.size(); ++i) CHECK(static_cast<unsigned>(frame[i]) == expected[i]);
}

TEST_CASE("chunks of any message put it together again") {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kMaxChunkPayloadBytes,
                                 kMaxChunkPayloadBytes + 1, 5 * kMaxChunkPayloadBytes + 3}) {
    std::vector<std::byte> message(size);
    SeededRandom(size).fill(message);
    ReassemblyBudget budget;
    Reassembler in(budget);
    std::vector<std::byte> out;
    std::size_t wholes = 0;
    for (Chunker chunker(1, message); !chunker.done(); chunker.advance()) {
      const auto frame = frame_of(chunker.next());
      REQUIRE(frame.size() <= kMaxFrameBytes);
      const auto whole = in.feed(decode_chunk(frame).value(), Instant{0}).value();
      if (whole) out.assign(whole->begin(), whole->end());
      wholes += whole.has_value();
    }
    CHECK(wholes == 1);
    CHECK(out == message);
  }
}

TEST_CASE("chunks out of sequence are refused and the next message is read") {
  ReassemblyBudget budget;
  const std::size_t all = budget.left;
  Reassembler in(budget);
  const Instant now{0};
  CHECK_FALSE(in.feed(chunk_of(0, 1, 1, kSome), now).ok());           // no beginning
  REQUIRE(in.feed(chunk_of(0, 0, 1, kSome), now).ok());               // begins 1
  CHECK_FALSE(in.feed(chunk_of(0, 2, 1, kSome), now).ok());           // a gap
  CHECK_FALSE(in.feed(chunk_of(0, 1, 1, kSome), now).ok());           // after the gap
  REQUIRE(in.feed(chunk_of(0, 0, 2, kSome), now).ok());               // begins 2
  CHECK_FALSE(in.feed(chunk_of(kChunkLast, 1, 3, kSome), now).ok());  // the end of another one
  REQUIRE(in.feed(chunk_of(0, 0, 4, kSome), now).ok());               // begins 4
  CHECK_FALSE(in.feed(chunk_of(0, 1, 4, {}), now).ok());              // would never end
  REQUIRE(in.feed(chunk_of(0, 0, 5, kSome), now).ok());               // begins 5, and 6 instead
  CHECK(in.feed(chunk_of(kChunkLast, 0, 6, kSome), now).value()->size() == kSome.size());
  CHECK(budget.left == all);
}

TEST_CASE("what is buffered is bounded for a message, for all together and in time") {
  const std::vector<std::byte> payload(kMaxChunkPayloadBytes);
  ReassemblyBudget budget;
  SECTION("a message") {
    Reassembler in(budget);
    std::uint32_t index = 0;
    while (in.feed(chunk_of(0, index, 1, payload), Instant{0}).ok()) ++index;
    CHECK(index == kMaxMessageBytes / kMaxChunkPayloadBytes);
    CHECK(in.buffered_bytes() == 0);
  }
  SECTION("all together") {
    budget.left = 3 * payload.size();
    Reassembler one(budget);
    Reassembler two(budget);
    REQUIRE(one.feed(chunk_of(0, 0, 1, payload), Instant{0}).ok());
    REQUIRE(two.feed(chunk_of(0, 0, 1, payload), Instant{0}).ok());
    REQUIRE(two.feed(chunk_of(0, 1, 1, payload), Instant{0}).ok());
    CHECK(one.feed(chunk_of(0, 1, 1, payload), Instant{0}).error().code == ErrorCode::kLimit);
    CHECK(budget.left == payload.size());
  }
  SECTION("in time") {
    const std::size_t all = budget.left;
    Reassembler in(budget);
    REQUIRE(in.feed(chunk_of(0, 0, 1, payload), Instant{1}).ok());
    CHECK_FALSE(in.expire(Instant{10}, Duration{10}));
    CHECK(in.expire(Instant{11}, Duration{10}));
    CHECK(budget.left == all);
  }
  SECTION("a reassembler gives back what it took") {
    const std::size_t all = budget.left;
    {
      Reassembler in(budget);
      REQUIRE(in.feed(chunk_of(0, 0, 1, payload), Instant{0}).ok());
    }
    CHECK(budget.left == all);
  }
}

TEST_CASE("any bytes give a chunk or an error, and any chunks keep the bounds") {
  const std::uint64_t seed = SystemRandom().next();
  CAPTURE(seed);
  SeededRandom random(seed);
  ReassemblyBudget budget;
  budget.left = 10000;
  Reassembler in(budget);
  std::size_t decoded = 0;
  for (int round = 0; round < 200000; ++round) {
    std::vector<std::byte> payload(random.below(64));
    auto frame = frame_of(chunk_of(static_cast<std::uint8_t>(random.below(4)),
                                   static_cast<std::uint32_t>(random.below(4)), random.below(4), payload));
    switch (random.below(4)) {
      case 0:
        frame[random.below(frame.size())] ^= static_cast<std::byte>(1 << random.below(8));
        break;
      case 1:
        frame.resize(random.below(frame.size() + 1));
        break;
      case 2:
        random.fill(frame);
        break;
      default:
        break;
    }
    const auto chunk = decode_chunk(frame);
    if (!chunk) continue;
    ++decoded;
    REQUIRE(frame_of(*chunk) == frame);  // nothing in a frame is ignored
    (void)in.feed(*chunk, Instant{round});
    REQUIRE(budget.left + in.buffered_bytes() == 10000);
  }
  CHECK(decoded > 10000);
}
