/// Sends and receives between two ranks, without anything in between that takes time: what one mailbox says
/// is handed to the other.

#include "collectives/native/mailbox.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>

#include "collectives/check_op.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::collectives;

namespace {

using Bytes = std::vector<std::byte>;

Op send_of(Bytes& bytes, int to, std::uint32_t tag) {
  Op made = Op::send({bytes.data(), bytes.size(), DType::kUInt8}, to, tag);
  complete_op(made, {});
  return made;
}
Op recv_of(Bytes& bytes, int from, std::uint32_t tag) {
  Op made = Op::recv({bytes.data(), bytes.size(), DType::kUInt8}, from, tag);
  complete_op(made, {});
  return made;
}

/// Hands one frame of `from` to `to`; whether there was one.
bool hand_over(Mailbox& from, Mailbox& to) {
  auto frame = from.next();
  if (!frame) return false;
  Bytes payload;
  for (auto piece : frame->pieces) payload.insert(payload.end(), piece.begin(), piece.end());
  REQUIRE(payload.size() == frame->header.payload_bytes);
  REQUIRE(decode_header(encode(frame->header)).ok());
  const auto target = to.begin(frame->header);
  REQUIRE(to.failure().empty());
  REQUIRE(target.size() == payload.size());
  if (!payload.empty()) std::memcpy(target.data(), payload.data(), payload.size());
  to.end();
  from.sent();
  return true;
}

void settle(Mailbox& a, Mailbox& b) {
  while (hand_over(a, b) || hand_over(b, a)) {
  }
}

Bytes random_bytes(Random& random, std::size_t size) {
  Bytes bytes(size);
  random.fill(bytes);
  return bytes;
}

}  // namespace

TEST_CASE("messages of any size and tag reach the receive with their tag, in the order of sending") {
  const std::uint64_t seed = 5;
  CAPTURE(seed);
  SeededRandom random(seed);
  for (int run = 0; run < 60; ++run) {
    // Rank 0's memory is seen by rank 1 in every other run, so that what lies there is not sent.
    Bytes shared = random_bytes(random, 1 << 20);
    const bool seen = run % 2 == 0;
    Mailbox zero(0, 1, {}),
        one(1, 0, seen ? std::span<const std::byte>(shared) : std::span<const std::byte>());
    Mailbox* boxes[] = {&zero, &one};
    struct Sent {
      std::shared_ptr<Transfer> transfer;
      Bytes bytes;
    };
    std::deque<Sent> messages;
    std::map<std::pair<int, std::uint32_t>, std::deque<Bytes>> on_the_way;  // to a rank, with a tag
    std::deque<Sent> received;
    std::deque<Bytes> wanted;
    const std::uint64_t sends_of_four = run % 3 == 0 ? 3 : 1;  // with 3 the window fills up
    for (int i = 0; i < 600; ++i) {
      const int self = static_cast<int>(random.below(2));
      const auto tag = static_cast<std::uint32_t>(random.below(3));
      const std::size_t sizes[] = {0, random.below(100), kEagerBytes, kEagerBytes + 1 + random.below(100000)};
      if (random.below(4) < sends_of_four) {
        auto& message = messages.emplace_back(Sent{nullptr, random_bytes(random, sizes[random.below(4)])});
        Op send = send_of(message.bytes, 1 - self, tag);
        std::uint64_t place = 0;
        if (self == 0 && seen && !message.bytes.empty()) {
          const std::size_t at = random.below(shared.size() - message.bytes.size());
          // Nothing else may be in flight there, as for any caller.
          if (zero.in_flight() == 0) {
            std::memcpy(shared.data() + at, message.bytes.data(), message.bytes.size());
            send.input.data = shared.data() + at;
            place = at + 1;
          }
        }
        on_the_way[{1 - self, tag}].push_back(message.bytes);
        message.transfer = boxes[self]->post(send, place);
      } else if (auto& queue = on_the_way[{self, tag}]; !queue.empty()) {
        wanted.push_back(queue.front());
        queue.pop_front();
        auto& into = received.emplace_back(Sent{nullptr, Bytes(wanted.back().size())});
        into.transfer = boxes[self]->post(recv_of(into.bytes, 1 - self, tag));
      }
      for (auto frames = random.below(4); frames > 0; --frames) {
        const int from = static_cast<int>(random.below(2));
        hand_over(*boxes[from], *boxes[1 - from]);
      }
    }
    for (auto& [key, queue] : on_the_way) {
      for (const Bytes& bytes : queue) {
        wanted.push_back(bytes);
        auto& into = received.emplace_back(Sent{nullptr, Bytes(bytes.size())});
        into.transfer = boxes[key.first]->post(recv_of(into.bytes, 1 - key.first, key.second));
      }
    }
    settle(zero, one);
    for (const auto& message : messages) REQUIRE(message.transfer->done);
    for (std::size_t i = 0; i < received.size(); ++i) {
      REQUIRE(received[i].transfer->done);
      REQUIRE(received[i].bytes == wanted[i]);
    }
    REQUIRE(zero.in_flight() + one.in_flight() == 0);
    REQUIRE((zero.oldest() == nullptr && one.oldest() == nullptr));
  }
}

TEST_CASE("small messages are done at once until the window is full, large ones when they are received") {
  Mailbox a(0, 1, {}), b(1, 0, {});
  Bytes small(100), large(kEagerBytes + 1), into(100), large_into(kEagerBytes + 1);
  std::vector<std::shared_ptr<Transfer>> sends;
  for (std::size_t i = 0; i < kEagerWindow + 10; ++i) sends.push_back(a.post(send_of(small, 1, 1)));
  sends.push_back(a.post(send_of(large, 1, 2)));
  settle(a, b);
  const auto done = [&] {
    return static_cast<std::size_t>(
        std::count_if(sends.begin(), sends.end(), [](auto& s) { return s->done; }));
  };
  CHECK(done() == kEagerWindow);
  b.post(recv_of(large_into, 0, 2));
  settle(a, b);
  CHECK(done() == kEagerWindow + 1);
  for (std::size_t i = 0; i < kEagerWindow + 10; ++i) b.post(recv_of(into, 0, 1));
  settle(a, b);
  CHECK(done() == sends.size());
  CHECK(b.in_flight() == 0);
  // The window has opened again.
  const auto next = a.post(send_of(small, 1, 3));
  settle(a, b);
  CHECK(next->done);
}

TEST_CASE("an empty message behind a full window is announced and comes as any other") {
  Mailbox a(0, 1, {}), b(1, 0, {});
  Bytes small(100), none, into(100);
  for (std::size_t i = 0; i < kEagerWindow; ++i) (void)a.post(send_of(small, 1, 1));
  const auto sent = a.post(send_of(none, 1, 1));
  settle(a, b);
  CHECK(!sent->done);
  for (std::size_t i = 0; i < kEagerWindow; ++i) (void)b.post(recv_of(into, 0, 1));
  const auto received = b.post(recv_of(none, 0, 1));
  settle(a, b);
  CHECK(sent->done);
  CHECK(received->done);
  CHECK(a.in_flight() + b.in_flight() == 0);
}

TEST_CASE("a rank may send to itself, up to a limit") {
  Mailbox self(2, 2, {});
  Bytes bytes(40 << 20, std::byte{7}), into(40 << 20);
  CHECK(self.post(send_of(bytes, 2, 1))->done);
  CHECK_THROWS_WITH(self.post(send_of(bytes, 2, 1)), Catch::Contains("64 MiB"));
  const auto early = self.post(recv_of(into, 2, 5));
  CHECK_FALSE(early->done);
  CHECK(self.post(recv_of(into, 2, 1))->done);
  CHECK(into == bytes);
  CHECK(self.post(send_of(bytes, 2, 5))->done);
  CHECK(early->done);
  CHECK(self.in_flight() == 0);
}

TEST_CASE("a send is refused, too, where it would be one message in flight too many") {
  Mailbox a(0, 1, {});
  Bytes bytes(1);
  for (std::size_t i = 0; i < kMaxMessages; ++i) a.post(recv_of(bytes, 1, 0));
  CHECK_THROWS_WITH(a.post(send_of(bytes, 1, 0)), Catch::Contains("4096 sends and receives are in flight"));
}

TEST_CASE("frames that nobody may send now are found, and nothing is written for them") {
  SeededRandom random(8);
  std::size_t refused = 0;
  for (int run = 0; run < 3000; ++run) {
    Bytes shared(1000), small(10), large(3 * kEagerBytes), into(3 * kEagerBytes);
    Mailbox a(0, 1, {}), b(1, 0, shared);
    a.post(send_of(small, 1, 1));
    b.post(recv_of(into, 0, 2));
    b.post(send_of(large, 0, 1));
    a.post(send_of(large, 1, 2));
    for (auto i = random.below(6); i > 0; --i) {
      hand_over(a, b);
      hand_over(b, a);
    }
    for (int i = 0; i < 20 && b.failure().empty(); ++i) {
      FrameHeader header{.kind = static_cast<FrameKind>(5 + random.below(6)),
                         .sequence = static_cast<std::uint32_t>(random.below(4)),
                         .round = static_cast<std::uint32_t>(random.below(4))};
      const std::uint64_t lengths[] = {0, 8, random.below(40000), random.next()};
      header.payload_bytes = lengths[random.below(4)];
      header.call = encode(Op{.kind = OpKind::kSend,
                              .dtype = DType::kUInt8,
                              .peer = 1,
                              .count = random.below(2) == 0 ? header.payload_bytes : into.size()});
      const auto target = b.begin(header);
      if (!b.failure().empty()) {
        REQUIRE(target.empty());
        ++refused;
        break;
      }
      REQUIRE(target.size() == header.payload_bytes);
      random.fill(target);  // the place of an offer lies as well
      b.end();
    }
  }
  CHECK(refused > 2000);
}

TEST_CASE("a message goes to a receive from its sender, else to the oldest from any rank with its tag") {
  AnyReceives any;
  Mailbox zero(0, 2, {}), one(1, 2, {}), from_zero(2, 0, {}, &any), from_one(2, 1, {}, &any);
  Bytes word(3, std::byte{1}), named(3), into[4] = {Bytes(3), Bytes(3), Bytes(3), Bytes(40000)};
  const std::uint32_t tags[] = {7, 7, 8, 9};
  std::vector<std::shared_ptr<Transfer>> open;
  for (int i = 0; i < 4; ++i)
    any.push_back(open.emplace_back(start_any(recv_of(into[i], kAnyRank, tags[i]), any)));
  const auto from_one_alone = from_one.post(recv_of(named, 1, 7));
  for (int i = 0; i < 2; ++i) one.post(send_of(word, 2, 7));
  settle(one, from_one);
  CHECK((from_one_alone->done && open[0]->done && !open[1]->done && !open[2]->done));
  CHECK((open[0]->call.peer == 1 && open[0]->number == 2));
  // One that is announced is its sender's from then on.
  Bytes large(40000, std::byte{2});
  zero.post(send_of(large, 2, 9));
  zero.post(send_of(word, 2, 8));
  settle(zero, from_zero);
  CHECK((open[2]->done && open[3]->done && into[3] == large && any.size() == 1 && !open[1]->done));
  CHECK((open[3]->call.peer == 0 && from_zero.in_flight() == 0));
  // What came before the receive was posted is taken from where it is kept.
  zero.post(send_of(word, 2, 5));
  settle(zero, from_zero);
  const auto late = start_any(recv_of(named, kAnyRank, 5), any);
  CHECK_FALSE(from_one.take(late));
  CHECK(from_zero.take(late));
  CHECK((late->done && late->call.peer == 0));
}
