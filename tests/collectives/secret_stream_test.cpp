/// Sealed frames, byte by byte, and what somebody between a store and its client sees and can do.

#include "collectives/secret_stream.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/rendezvous/job_key.hpp"
#include "collectives/rendezvous/store/store_client.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace std::chrono_literals;

namespace {

std::span<const std::byte> passed_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// Stands between one client and the store, writes down all that passes, and may change it.
class Proxy {
 public:
  /// Changes what one side sends: what came, in the order of its arrival. Called on the proxy's thread.
  using Change = std::function<std::vector<std::byte>(std::vector<std::byte>)>;

  explicit Proxy(const Endpoint& store) : store_(store) {
    thread_ = std::thread([this] { run(); });
  }
  ~Proxy() {
    over_ = true;
    thread_.join();
  }
  const Endpoint& endpoint() const { return listener_.endpoint(); }
  std::string seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }
  /// From here on: of what the store says.
  void change(Change change) {
    const std::lock_guard lock(mutex_);
    change_ = std::move(change);
  }

 private:
  void run() {
    UniqueFd client, store;
    while (!over_) {
      pollfd fds[] = {{listener_.fd(), POLLIN, 0}, {client.get(), POLLIN, 0}, {store.get(), POLLIN, 0}};
      ::poll(fds, 3, 20);
      if (!client && (fds[0].revents & POLLIN) != 0) {
        client = UniqueFd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
        store = dial(store_, 5s).value();
      }
      if ((client && fds[1].revents != 0 && !pass(client, store, false)) ||
          (store && fds[2].revents != 0 && !pass(store, client, true))) {
        client = UniqueFd();
        store = UniqueFd();
      }
    }
  }

  bool pass(const UniqueFd& from, const UniqueFd& to, bool of_store) {
    std::vector<std::byte> bytes(100'000);
    const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return true;
    if (got == 0) return false;
    bytes.resize(static_cast<std::size_t>(got));
    const std::lock_guard lock(mutex_);
    seen_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (of_store && change_) bytes = change_(std::move(bytes));
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(to.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (n > 0) sent += static_cast<std::size_t>(n);
    }
    return !cut_;
  }

  const Endpoint store_;
  DataListener listener_ = DataListener::bind({"127.0.0.1", 0}).value();
  std::mutex mutex_;
  std::string seen_;
  Change change_;

 public:
  std::atomic<bool> cut_{false};  ///< hang up after what passes next

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

/// A store, and a client of it that goes through a proxy.
struct Tapped {
  JobKey key = random_job_key();
  std::unique_ptr<StoreServer> server =
      StoreServer::start(DataListener::bind({"127.0.0.1", 0}).value(), {.key = key, .world_size = 3}).value();
  Proxy proxy{server->endpoint()};
  std::unique_ptr<StoreClient> client =
      StoreClient::connect({.at = proxy.endpoint(), .key = key, .rank = 1, .world_size = 3}).value();
};

}  // namespace

TEST_CASE("a sealed frame that was altered, repeated, left out, reordered or cut does not open") {
  SessionKey key{};
  SeededRandom(3).fill(key);
  SecretSealer sealer(key);
  const auto sealed = [&](const std::string& text) {
    std::vector<std::byte> frame;
    sealer.seal(passed_bytes(text), frame);
    return frame;
  };
  const auto first = sealed("one");
  const auto second = sealed("two");
  const auto third = sealed("");
  const auto opens = [&](std::initializer_list<std::span<const std::byte>> frames) {
    SecretOpener opener(key, 16);
    for (const auto frame : frames) {
      for (const auto byte : frame) opener.feed(std::span(&byte, 1));  // cut anywhere
      const auto body = opener.next();
      if (!body) CHECK(opener.next().error().code == body.error().code);  // and for ever
      if (!body || !*body) return false;
    }
    return opener.empty();
  };
  CHECK(opens({first, second, third}));
  CHECK_FALSE(opens({first, first}));
  CHECK_FALSE(opens({second}));
  CHECK_FALSE(opens({first, third, second}));
  CHECK_FALSE(opens({first, third}));
  CHECK_FALSE(opens({std::span(first).first(first.size() - 1)}));
  for (std::size_t at = 0; at < first.size(); ++at) {
    auto altered = first;
    altered[at] ^= std::byte{4};
    CHECK_FALSE(opens({altered}));
  }
  SessionKey other = key;
  other[31] ^= std::byte{1};
  SecretOpener wrong(other, 16);
  wrong.feed(first);
  CHECK(wrong.next().error().code == ErrorCode::kRefused);
}

TEST_CASE("a sealed frame that is too long is refused at its length, and noise opens nothing") {
  SessionKey key{};
  SecretOpener endless(key, 16);
  endless.feed(passed_bytes(std::string(24, 'h') + "\x11" + std::string(3, '\0')));
  CHECK(endless.next().error().code == ErrorCode::kLimit);
  SeededRandom random(21);
  std::array<std::byte, 300> noise;
  for (int i = 0; i < 5'000; ++i) {
    random.fill(noise);
    noise[kSecretHeaderBytes + 1] = noise[kSecretHeaderBytes + 2] = noise[kSecretHeaderBytes + 3] = {};
    SecretOpener opener(key, 4096);
    opener.feed(std::span(noise).first(random.below(noise.size())));
    while (true) {
      const auto body = opener.next();
      CHECK((!body || !*body));
      break;
    }
  }
}

TEST_CASE("frames come through a buffer of the receiver's own, however they are cut") {
  SessionKey key{};
  SeededRandom random(4);
  SecretSealer sealer(key);
  SecretOpener opener(key, 1000);
  std::vector<std::byte> wire;
  std::vector<std::vector<std::byte>> bodies;
  for (int i = 0; i < 200; ++i) {
    bodies.emplace_back(random.below(1001));
    random.fill(bodies.back());
    sealer.seal(bodies.back(), wire);
  }
  std::size_t at = 0, opened = 0;
  while (opened < bodies.size()) {
    const auto room = opener.room();
    REQUIRE_FALSE(room.empty());
    const std::size_t n = std::min({room.size(), wire.size() - at, 1 + random.below(1500)});
    std::copy_n(wire.begin() + static_cast<std::ptrdiff_t>(at), n, room.begin());
    opener.commit(n);
    at += n;
    while (const auto bytes = opener.next_bytes().value()) {
      std::vector<std::byte> body(*bytes);
      opener.open(body).value();
      CHECK(body == bodies[opened++]);
    }
  }
  CHECK(at == wire.size());
  CHECK(opener.empty());
}

/// The store's frames had a MAC and were not encrypted: NCCL's unique id and the tokens of regions went in
/// the clear.
TEST_CASE("who listens between a client and the store sees neither keys nor values") {
  Tapped tapped;
  const std::string key = "a-key-that-is-nobodys-business", value = "a-value-that-is-nobodys-business";
  tapped.client->set(key, value);
  CHECK(tapped.client->get(key, 60s) == value);
  tapped.client->set(key + "/2", value + value);
  const std::string seen = tapped.proxy.seen();
  CHECK(seen.size() > 300);
  for (const std::string& secret : {key, value, key.substr(0, 8), value.substr(8, 8)}) {
    CHECK(seen.find(secret) == std::string::npos);
  }
}

TEST_CASE("who changes what a store says ends the connection, with one error") {
  set_log_level(LogLevel::kError);
  // What to do to two answers, which pass one by one.
  std::vector<std::byte> kept;
  std::atomic<int> passed{0};
  const auto flip = [](std::vector<std::byte> frame) {
    frame[frame.size() / 2] ^= std::byte{1};
    return frame;
  };
  const auto replay = [&](const std::vector<std::byte>& frame) {
    if (kept.empty()) kept = frame;
    return kept;
  };
  const auto drop_one = [&](const std::vector<std::byte>& frame) {
    return passed == 0 ? std::vector<std::byte>() : frame;
  };
  const auto swap = [&](std::vector<std::byte> frame) {
    if (kept.empty()) return kept = std::move(frame), std::vector<std::byte>();
    frame.insert(frame.end(), kept.begin(), kept.end());
    return frame;
  };
  const std::string changed = "altered, repeated, left out or reordered";
  for (const auto& [name, change] : std::vector<std::pair<std::string, Proxy::Change>>{
           {"flip", flip}, {"replay", replay}, {"drop", drop_one}, {"swap", swap}}) {
    CAPTURE(name);
    kept.clear();
    passed = 0;
    Tapped tapped;
    tapped.client->set("k", "v");
    tapped.proxy.change([&, change = change](std::vector<std::byte> frame) {
      auto now = change(std::move(frame));
      ++passed;
      return now;
    });
    const auto first = tapped.client->begin({.op = StoreOp::kFind, .key = "k"});
    test::yield_until([&] { return passed != 0; });
    try {
      const auto second = tapped.client->begin({.op = StoreOp::kFind, .key = "k"});
      (void)second->next(60s);
      (void)second->next(60s);
      CHECK(false);
    } catch (const Unavailable& e) {
      CHECK_THAT(e.what(), Catch::Contains(changed));
    }
    CHECK_THROWS_WITH(tapped.client->set("a", "b"), Catch::Contains(changed));  // the first reason stays
  }
  Tapped tapped;
  tapped.client->set("k", "v");
  tapped.proxy.change([&](std::vector<std::byte> frame) {
    frame.pop_back();
    tapped.proxy.cut_ = true;
    return frame;
  });
  CHECK_THROWS_WITH(tapped.client->find("k"), Catch::Contains("in the middle of a frame"));
}
