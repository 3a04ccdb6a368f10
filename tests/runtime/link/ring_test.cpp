// The ring between two processes, here both ends in one.
#include "runtime/link/ring/ring.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/core/random.hpp"

using namespace troupe;

namespace {

struct Ring {
  std::vector<std::byte> memory = std::vector<std::byte>(kRingBytes + 64);
  std::byte* at = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
  RingWriter writer{at};
  RingReader reader{at};
  bool write(std::uint32_t number, wire::ByteView body) {
    return writer.write({{}, std::as_bytes(std::span(&number, 1)), body});
  }
  RingHeader& header() { return *reinterpret_cast<RingHeader*>(at); }
};

}  // namespace

TEST_CASE("messages of any length come whole and in order, over the wrap") {
  Ring ring;
  constexpr int kMessages = 20'000;
  std::thread sender([&] {
    SeededRandom random(5);
    for (int i = 0; i < kMessages; ++i) {
      std::vector<std::byte> body(static_cast<std::size_t>(random.next() % 5000));
      random.fill(body);
      while (!ring.write(static_cast<std::uint32_t>(i), body)) std::this_thread::yield();
    }
  });
  SeededRandom random(5);
  bool same = true;
  for (int i = 0; i < kMessages;) {
    const auto message = ring.reader.front();
    if (message.empty()) {
      std::this_thread::yield();
      continue;
    }
    std::vector<std::byte> expected(static_cast<std::size_t>(random.next() % 5000));
    random.fill(expected);
    std::uint32_t number = 0;
    std::memcpy(&number, message.data() + kPacketHeaderBytes, sizeof number);
    same = same && number == static_cast<std::uint32_t>(i) &&
           message.size() == kPacketHeaderBytes + sizeof number + expected.size() &&
           std::equal(expected.begin(), expected.end(), message.data() + kPacketHeaderBytes + sizeof number);
    ring.reader.pop();
    ++i;
  }
  sender.join();
  CHECK(same);
  CHECK(ring.reader.front().empty());
  CHECK_FALSE(ring.reader.poisoned());
}

TEST_CASE("a full ring refuses, and takes more once it was read") {
  Ring ring;
  const std::vector<std::byte> body(kRingPacketMax - kPacketHeaderBytes - 4);
  int written = 0;
  while (ring.write(1, body)) ++written;
  CHECK(written == 3);  // a fourth would not leave room for its length
  REQUIRE_FALSE(ring.reader.front().empty());
  ring.reader.pop();
  CHECK(ring.write(1, {}));
}

TEST_CASE("a writer that found no room is heard of by the reader, once") {
  Ring ring;
  const std::vector<std::byte> body(kRingPacketMax / 2);
  while (ring.write(1, body)) {
  }
  CHECK_FALSE(ring.reader.take_starved());
  ring.writer.starve();
  CHECK_FALSE(ring.writer.has_room());
  while (!ring.reader.front().empty()) ring.reader.pop();
  CHECK(ring.reader.take_starved());
  CHECK_FALSE(ring.reader.take_starved());
  CHECK(ring.writer.has_room());
}

TEST_CASE("a peer that lies about positions or lengths poisons the ring") {
  Ring ring;
  REQUIRE(ring.write(1, {}));
  std::byte* const data = ring.at + sizeof(RingHeader);
  std::uint32_t length = 0;
  SECTION("a length of nothing") {
    std::memcpy(data, &length, sizeof length);
  }
  SECTION("a length beyond what was written") {
    length = 100'000;
    std::memcpy(data, &length, sizeof length);
  }
  SECTION("a length beyond any") {
    length = 0xfffffff0;
    std::memcpy(data, &length, sizeof length);
  }
  SECTION("a position beyond the ring") {
    ring.header().written = std::uint64_t{1} << 40;
  }
  CHECK(ring.reader.front().empty());
  CHECK(ring.reader.poisoned());
}
