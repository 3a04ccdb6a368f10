/// What goes over a connection between hosts that encrypts.

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <string>

#include "collectives/native/byte_stream.hpp"
#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::collectives;

namespace {

struct Ends {
  UniqueFd one, other;
};

Ends socket_pair() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

SessionKeys keys_of(int end) {
  SessionKeys keys;
  keys.out.fill(std::byte{1});
  keys.in.fill(std::byte{2});
  if (end == 1) std::swap(keys.out, keys.in);
  return keys;
}

std::unique_ptr<SealedStream> sealed_end(UniqueFd fd, int end) {
  return std::make_unique<SealedStream>(std::make_unique<SocketStream>(std::move(fd)), keys_of(end));
}

/// What a socket has.
std::vector<std::byte> drain(int fd) {
  std::vector<std::byte> all(1 << 20);
  const ssize_t n = ::recv(fd, all.data(), all.size(), MSG_DONTWAIT);
  all.resize(static_cast<std::size_t>(std::max<ssize_t>(0, n)));
  return all;
}

}  // namespace

TEST_CASE("what is sealed comes as it was, however it is cut, and more than a socket holds") {
  SeededRandom random(5);
  auto [a, b] = socket_pair();
  const auto writer = sealed_end(std::move(a), 0), reader = sealed_end(std::move(b), 1);
  std::vector<std::byte> sent(3 << 20), got(sent.size());
  random.fill(sent);
  std::size_t out = 0, in = 0;
  while (in < sent.size()) {
    const std::size_t cut = std::min<std::size_t>(sent.size() - out, 200'001);
    const std::span<const std::byte> pieces[] = {std::span(sent).subspan(out, cut / 3),
                                                 std::span(sent).subspan(out + cut / 3, cut - cut / 3)};
    if (cut != 0) {
      // What was not taken is offered again, the same.
      const std::size_t taken = writer->write(pieces);
      REQUIRE(taken <= cut);
      out += taken;
    }
    while (true) {
      const std::size_t room = std::min<std::size_t>(got.size() - in, 1 + random.below(90'000));
      const std::size_t n = reader->read(std::span(got).subspan(in, room));
      if (n == 0) break;
      in += n;
    }
    REQUIRE((writer->broken().empty() && reader->broken().empty()));
  }
  CHECK(got == sent);
}

TEST_CASE("nobody on the way reads or changes what is sealed") {
  const std::string secret = "the weights of the model, which are worth something";
  const auto text = std::as_bytes(std::span(secret));
  for (const bool changed : {false, true}) {
    auto [a, tap] = socket_pair();
    auto [other_tap, b] = socket_pair();
    const auto writer = sealed_end(std::move(a), 0), reader = sealed_end(std::move(b), 1);
    REQUIRE(writer->write(std::span(&text, 1)) == text.size());
    std::vector<std::byte> seen = drain(tap.get());
    REQUIRE(seen.size() > text.size());
    const std::string passed(reinterpret_cast<const char*>(seen.data()), seen.size());
    CHECK(passed.find("weights") == std::string::npos);
    if (changed) seen.back() ^= std::byte{1};
    REQUIRE(::send(other_tap.get(), seen.data(), seen.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(seen.size()));
    std::vector<std::byte> got(text.size());
    const std::size_t n = reader->read(got);
    CHECK(n == (changed ? 0 : text.size()));
    CHECK(reader->broken().empty() != changed);
  }
}

TEST_CASE("a sealed connection that is cut in the middle of a frame says so") {
  auto [a, tap] = socket_pair();
  auto [other_tap, b] = socket_pair();
  const auto writer = sealed_end(std::move(a), 0), reader = sealed_end(std::move(b), 1);
  const std::vector<std::byte> bytes(1000);
  const std::span<const std::byte> piece(bytes);
  REQUIRE(writer->write(std::span(&piece, 1)) == 1000);
  const std::vector<std::byte> seen = drain(tap.get());
  REQUIRE(::send(other_tap.get(), seen.data(), seen.size() - 1, MSG_NOSIGNAL) > 0);
  other_tap.reset();
  std::vector<std::byte> got(1000);
  CHECK(reader->read(got) == 0);
  CHECK_THAT(reader->broken(), Catch::Contains("in the middle of a frame"));
}
