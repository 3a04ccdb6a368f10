// What ranks of a process group send each other: the store's wire, sealed frames, frames between hosts.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "collectives/check_op.hpp"
#include "collectives/native/mailbox.hpp"
#include "collectives/rendezvous/store/store_wire.hpp"
#include "tests/fuzz/reader.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

using namespace collectives;

namespace {

/// Bodies have one form: what was decoded is the same bytes again.
template <class Decode>
bool is_canonical(std::span<const std::byte> bytes, Decode decode) {
  const auto value = decode(bytes);
  if (!value) return false;
  const std::vector<std::byte> again = encode(*value);
  check(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
        "what was accepted is encoded as it came");
  return true;
}

/// Whole frames of a peer, and nothing more.
class GivenBytes final : public ByteStream {
 public:
  explicit GivenBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::size_t write(std::span<const std::span<const std::byte>>) override { return 0; }
  std::size_t read(std::span<std::byte> into) override {
    const auto got = take(bytes_, into.size());
    std::copy(got.begin(), got.end(), into.begin());
    return got.size();
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

bool store_request(std::span<const std::byte> bytes) {
  return is_canonical(bytes, decode_request);
}

bool store_response(std::span<const std::byte> bytes) {
  return is_canonical(bytes, decode_response);
}

bool store_entry(std::span<const std::byte> bytes) {
  const auto entry = decode_entry(text_of(bytes));
  if (!entry) return false;
  check(encode(*entry) == text_of(bytes), "an entry that was accepted is encoded as it came");
  check(!entry->ranks.empty() && std::is_sorted(entry->ranks.begin(), entry->ranks.end()),
        "an entry has ranks, in order");
  return true;
}

/// Lists that continue each other, each after its length in two bytes.
bool store_gathered(std::span<const std::byte> bytes) {
  Gathered gathered;
  while (!bytes.empty()) {
    const std::size_t before = gathered.values.size();
    const bool accepted = decode_gathered(text_of(take(bytes, take_u16(bytes))), gathered).ok();
    check(gathered.values.size() >= before && gathered.values.size() <= gathered.total,
          "values are added, and no more than there are ranks");
    check(std::is_sorted(gathered.values.begin(), gathered.values.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; }),
          "values are in the order of ranks");
    if (!accepted) return false;
  }
  return gathered.total != 0;
}

/// Frames that were sealed, and what somebody in between does to them: for each frame the length of its body,
/// what is done (0 nothing, 1 a bit is flipped, 2 left out, 3 repeated, 4 swapped with the next one, 5 cut
/// off, 6 noise of the body's length ahead of it) and where. Only a prefix of what was sealed may come out.
bool sealed_stream(std::span<const std::byte> bytes) {
  constexpr std::size_t kMaxBody = 200;
  decoded();  // most of what follows is the target's own
  const SessionKey key{std::byte{7}};
  SecretSealer sealer(key);
  std::vector<std::byte> sent;
  std::vector<std::vector<std::byte>> bodies, held;
  while (bytes.size() >= 3) {
    const std::size_t length = static_cast<std::size_t>(take(bytes, 1)[0]);
    const auto fate = static_cast<unsigned>(take(bytes, 1)[0]) % 7;
    const std::size_t at = static_cast<std::size_t>(take(bytes, 1)[0]);
    bodies.emplace_back(length, static_cast<std::byte>(bodies.size()));
    std::vector<std::byte> frame;
    sealer.seal(bodies.back(), frame);
    if (fate == 1) frame[at % frame.size()] ^= std::byte{1} << (length % 8);
    if (fate == 5) frame.resize(at % frame.size());
    if (fate == 6) sent.insert(sent.end(), length, static_cast<std::byte>(at));
    if (fate == 4) {
      held.push_back(std::move(frame));
      continue;
    }
    for (unsigned i = 0; fate != 2 && i < (fate == 3 ? 2 : 1); ++i)
      sent.insert(sent.end(), frame.begin(), frame.end());
    for (const auto& late : std::exchange(held, {})) sent.insert(sent.end(), late.begin(), late.end());
  }
  SecretOpener opener(key, kMaxBody);
  std::size_t opened = 0;
  bool failed = false;
  for (std::span<const std::byte> left = sent; !left.empty();) {
    opener.feed(take(left, 1 + opened * 37 % 64));
    for (bool more = true; more;) {
      const auto body = opener.next();
      check(!failed || !body, "after an error every frame is an error");
      failed = !body;
      more = body && body->has_value();
      if (!more) break;
      check(opened < bodies.size() && **body == bodies[opened], "frames open as they were sealed, in order");
      check((*body)->size() <= kMaxBody, "no body is longer than the limit");
      ++opened;
    }
  }
  // The same over a connection, which knows no frames.
  SealedStream stream(std::make_unique<GivenBytes>(sent), {.in = key});
  std::array<std::byte, 37> some;
  std::size_t body = 0, at = 0;
  for (std::size_t got = 0; (got = stream.read(some)) != 0;) {
    for (std::size_t i = 0; i < got; ++i, ++at) {
      for (; body < bodies.size() && at == bodies[body].size(); ++body) at = 0;
      check(body < bodies.size() && some[i] == bodies[body][at], "bytes come as they were sealed, in order");
    }
  }
  return opened == bodies.size() && opened != 0 && opener.empty();
}

bool rank_frame_header(std::span<const std::byte> bytes) {
  if (bytes.size() != kFrameHeaderBytes) return false;
  const auto header = decode_header(bytes.first<kFrameHeaderBytes>());
  if (!header) return false;
  const auto again = encode(*header);
  check(std::equal(again.begin(), again.end(), bytes.begin()), "what was accepted is encoded as it came");
  return true;
}

/// Frames of another rank, as they come over a socket, to a mailbox in which two receives and two sends wait.
bool rank_frames(std::span<const std::byte> bytes) {
  constexpr std::size_t kBytes = 300;
  static std::array<std::byte, kBytes> first, second, out{}, shared{};
  const auto op = [](Op made) {
    complete_op(made, {});
    return made;
  };
  const auto buffer = [](std::array<std::byte, kBytes>& at) {
    return Buffer{at.data(), kBytes, DType::kUInt8};
  };
  Mailbox mailbox(0, 1, shared);
  const std::array transfers{
      mailbox.post(op(Op::recv(buffer(first), 1, 0))), mailbox.post(op(Op::recv(buffer(second), 1, 1))),
      mailbox.post(op(Op::send(buffer(out), 1, 0))), mailbox.post(op(Op::send(buffer(out), 1, 1)), 1)};
  const auto say_all = [&] {
    for (std::size_t frames = 0; mailbox.next(); ++frames) {
      check(frames < 100, "what a mailbox has to say ends");
      mailbox.sent();
    }
  };
  say_all();
  Link link(1, std::make_unique<GivenBytes>(bytes));
  std::size_t received = 0;
  while (mailbox.failure().empty() && link.pump_in() && link.header()) {
    const FrameHeader header = *link.header();
    const auto again = decode_header(encode(header));
    check(again.ok() && encode(*again) == encode(header),
          "a decoded header is the same after it was encoded");
    // Others are the engine's, which knows the length.
    if (header.kind < FrameKind::kMessage || header.kind > FrameKind::kCopied) return false;
    const auto target = mailbox.begin(header);
    if (!mailbox.failure().empty()) break;
    check(target.size() == header.payload_bytes, "a payload has room for all of it");
    link.receive_into({target});
    link.pump_in();
    if (!link.received()) break;
    mailbox.end();
    link.next_frame();
    ++received;
    say_all();
    for (const auto& transfer : transfers) {
      check(transfer->moved <= transfer->bytes, "no more comes than a receive takes");
    }
    check(mailbox.in_flight() <= transfers.size(), "nothing is in flight that nobody posted");
  }
  return mailbox.failure().empty() && link.broken().empty() && received != 0;
}

}  // namespace troupe::fuzz
