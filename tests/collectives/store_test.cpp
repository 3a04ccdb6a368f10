/// The store at which ranks meet: its decisions, its bytes, and its server among strangers.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/rendezvous/job_key.hpp"
#include "collectives/rendezvous/store/store_client.hpp"
#include "collectives/rendezvous/store/store_core.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/rendezvous_ranks.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

namespace {

StoreRequest find_of(const std::string& key, std::uint32_t wait_ms = 0, std::uint32_t id = 1) {
  return {.op = StoreOp::kFind, .id = id, .key = key, .wait_ms = wait_ms};
}
StoreRequest set_of(const std::string& key, const std::string& value) {
  return {.op = StoreOp::kSet, .id = 1, .key = key, .value = value};
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void say(const UniqueFd& fd, std::span<const std::byte> bytes) {
  REQUIRE(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

std::vector<std::byte> sealed(SecretSealer& sealer, std::span<const std::byte> body) {
  std::vector<std::byte> frame;
  sealer.seal(body, frame);
  return frame;
}

/// Blocks until the other side hangs up; how much it said before.
std::size_t hear_out(const UniqueFd& fd) {
  std::size_t total = 0;
  std::array<std::byte, 256> bytes;
  while (true) {
    pollfd entry{fd.get(), POLLIN, 0};
    ::poll(&entry, 1, -1);
    const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return total;
    total += static_cast<std::size_t>(got);
  }
}

/// A server of a job of three, with the client of rank 0.
struct Job {
  JobKey key = random_job_key();
  const int size;
  std::unique_ptr<StoreServer> server;
  std::unique_ptr<StoreClient> zero;

  explicit Job(Duration handshake_timeout = 5s, int world_size = 3) : size(world_size) {
    server = StoreServer::start(DataListener::bind({"127.0.0.1", 0}).value(),
                                {.key = key, .world_size = size, .handshake_timeout = handshake_timeout})
                 .value();
    zero = std::make_unique<StoreClient>(server->local_session());
  }
  StoreClient::Options options(int rank) const {
    return {.at = server->endpoint(), .key = key, .rank = rank, .world_size = size};
  }
  /// As ranks do it: a machine so busy that the handshake took too long is no reason to give up.
  std::unique_ptr<StoreClient> client(int rank) const {
    while (true) {
      auto made = StoreClient::connect(options(rank));
      if (made || made.error().code != ErrorCode::kUnavailable) return std::move(made).value();
    }
  }
};

}  // namespace

TEST_CASE("the store keeps, finds and lets wait") {
  StoreCore core;
  CHECK(core.on_request(1, 0, find_of("a"), 0ns).at(0).response.status == StoreStatus::kAbsent);
  CHECK(core.on_request(1, 0, find_of("a", 100), 0ns).empty());
  CHECK(core.on_request(1, 0, find_of("a", 100), 0ns).at(0).response.status == StoreStatus::kBad);
  CHECK(core.on_request(1, 0, find_of("a", 300, 2), 0ns).empty());
  CHECK(core.on_request(2, 1, find_of("a", 200), 0ns).empty());
  CHECK(core.next_deadline() == Instant(100ms));
  const auto expired = core.on_time(100ms);
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].to == 1);
  CHECK(expired[0].response.status == StoreStatus::kAbsent);
  const auto set = core.on_request(1, 0, set_of("a", "x"), 100ms);
  REQUIRE(set.size() == 3);  // who waited, and who set it
  CHECK(set[0].to == 1);
  CHECK(set[0].response.id == 2);
  CHECK(set[1].to == 2);
  CHECK(set[1].response.value == "x");
  CHECK_FALSE(core.next_deadline());

  CHECK(core.on_request(3, 0, find_of("never", 100), 0ns).empty());
  CHECK(core.on_request(3, 0, find_of("never", 200, 2), 0ns).empty());
  CHECK(core.next_deadline() == 100ms);
  core.on_gone(3);
  CHECK_FALSE(core.next_deadline());
  CHECK(core.on_request(1, 0, set_of("never", "now"), 0ns).size() == 1);  // nobody waits any more

  // One client's waits are bounded.
  StoreStatus status = StoreStatus::kOk;
  for (std::uint32_t id = 1; id <= StoreCore::kMaxWaits + 1 && status == StoreStatus::kOk; ++id) {
    const auto replies = core.on_request(4, 0, find_of("nothing", 60'000, id), 0ns);
    if (!replies.empty()) status = replies[0].response.status;
  }
  CHECK(status == StoreStatus::kLimit);
}

TEST_CASE("the store erases by prefix, and has the room again") {
  StoreCore core;
  for (const char* key : {"a", "a/", "a/x", "a/y/z", "b"}) core.on_request(1, 0, set_of(key, "value"), 0ns);
  const std::size_t before = core.bytes();
  const StoreRequest erase{.op = StoreOp::kErase, .key = "a/"};
  CHECK(core.on_request(1, 0, erase, 0ns).at(0).response.amount == 3);
  CHECK(core.bytes() == before - 10 - 3 * 5);
  CHECK(core.on_request(1, 0, find_of("a"), 0ns).at(0).response.value == "value");
  CHECK(core.on_request(1, 0, find_of("a/x"), 0ns).at(0).response.status == StoreStatus::kAbsent);
  CHECK(core.on_request(1, 0, erase, 0ns).at(0).response.amount == 0);
}

TEST_CASE("the store knows who is there, and tells all who are how each went") {
  StoreCore core;
  const auto join = [&](StoreCore::Client client, int rank) {
    return core.on_request(client, rank, {.op = StoreOp::kJoin, .id = 1, .value = "pid 7"}, 0ns);
  };
  CHECK(join(1, 0).at(0).response.status == StoreStatus::kOk);
  CHECK(join(2, 1).at(0).response.status == StoreStatus::kOk);
  CHECK(join(3, 1).at(0).response.status == StoreStatus::kTaken);
  CHECK(join(3, 1).at(0).response.value == "pid 7");
  CHECK(core.present() == 2);
  CHECK(core.on_gone(3).empty());  // the second that said it was rank 1
  // Another connection of rank 1 cannot take its leave.
  CHECK(core.on_request(5, 1, {.op = StoreOp::kLeave, .id = 1}, 0ns).size() == 1);
  CHECK(core.present() == 2);
  const auto lost = core.on_gone(2);
  REQUIRE(lost.size() == 1);
  CHECK(lost[0].to == 1);
  CHECK(lost[0].response == StoreResponse{0, StoreStatus::kLost, 1, "pid 7"});
  CHECK(join(6, 1).at(0).response.status == StoreStatus::kOver);
  // Who comes later hears of it, too; and of a rank that never came.
  const auto told = join(7, 2);
  REQUIRE(told.size() == 2);
  CHECK(told[0].response == StoreResponse{0, StoreStatus::kLost, 1, "pid 7"});
  CHECK(core.on_lost(2, {.died = true, .who = "x"}).empty());  // it is there
  CHECK(core.on_lost(3, {.died = true, .who = "x"}).size() == 2);
  CHECK(core.on_lost(3, {.died = true, .who = "x"}).empty());
  CHECK(join(8, 3).at(0).response.status == StoreStatus::kOver);
  core.on_request(1, 0, {.op = StoreOp::kLeave, .id = 2}, 0ns);
  CHECK(core.on_gone(1).empty());
  core.on_gone(7);
  CHECK(core.present() == 0);
}

TEST_CASE("the store has a limit") {
  StoreCore core;
  const std::string large(kMaxStoreValueBytes, 'x');
  std::size_t kept = 0;
  StoreStatus status = StoreStatus::kOk;
  for (; status == StoreStatus::kOk && kept < 10'000; ++kept) {
    status = core.on_request(1, 0, set_of(std::to_string(kept), large), 0ns).at(0).response.status;
  }
  CHECK(status == StoreStatus::kLimit);
  CHECK(kept <= kMaxStoreBytes / large.size() + 1);
  // What is there can still be replaced by what is as long.
  CHECK(core.on_request(1, 0, set_of("0", large), 0ns).at(0).response.status == StoreStatus::kOk);
}

TEST_CASE("requests and responses come back as they were, and cut they do not decode") {
  const StoreRequest request{.op = StoreOp::kMore,
                             .id = 9,
                             .key = std::string("k\0y", 3),
                             .value = "v",
                             .amount = -5,
                             .wait_ms = 17};
  const StoreResponse response{
      .id = 8, .status = StoreStatus::kTaken, .amount = -1, .value = std::string(65536, 'z')};
  CHECK(decode_request(encode(request)).value() == request);
  CHECK(decode_response(encode(response)).value() == response);
  const auto whole = encode(request);
  for (std::size_t n = 0; n < whole.size(); ++n) CHECK_FALSE(decode_request(std::span(whole).first(n)).ok());
  auto longer = whole;
  longer.push_back(std::byte{0});
  CHECK_FALSE(decode_request(longer).ok());
}

TEST_CASE("clients of one store see each other's keys") {
  const std::size_t descriptors = open_descriptors();
  {
    Job job;
    const auto one = job.client(1);
    const auto two = job.client(2);
    std::thread waits([&] { CHECK(two->get("greeting", 60s) == "hello"); });
    one->set("greeting", "hello");
    waits.join();
    CHECK_FALSE(one->find("nothing"));
    CHECK_THROWS_WITH(one->get("nothing", 1ms), Catch::Contains("'nothing' after 1 ms"));
    CHECK_THROWS_AS(one->set(std::string(257, 'k'), ""), BadInput);
    CHECK_THROWS_AS(one->set("", ""), BadInput);
    CHECK_THROWS_AS(one->set("k", std::string(65537, 'v')), BadInput);
    one->set("k", std::string(65536, 'v'));
    CHECK(two->get("k", 1s).size() == 65536);

    std::thread parked([&] {
      CHECK_THROWS_WITH(one->get("never", 60s), Catch::Contains("the rank that served it has left"));
    });
    job.server->close(0s);
    parked.join();
    CHECK_THROWS_WITH(two->set("a", "b"), Catch::Contains("the rank that served it has left"));
    CHECK_THROWS_WITH(two->set("a", "b"), Catch::Contains("the rank that served it has left"));
  }
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("strangers are turned away, and do not disturb the ranks") {
  set_log_level(LogLevel::kError);
  Job job(200ms);
  SeededRandom random(9);
  const auto stranger = [&](std::span<const std::byte> says) {
    UniqueFd fd = dial(job.server->endpoint(), 5s).value();
    if (!says.empty()) say(fd, says);
    return fd;
  };
  std::array<std::byte, 300> noise;
  random.fill(noise);
  const auto hello_of = [&](const HandshakeIdentity& who) {
    return ConnectorHandshake(job.key, who, 0, random).hello();
  };
  const auto good = hello_of({.world_size = 3, .rank = 1, .purpose = "store"});
  const UniqueFd silent = stranger({});
  const UniqueFd cut = stranger(std::span(good).first(20));
  CHECK(hear_out(stranger(noise)) == 0);
  CHECK(hear_out(stranger(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))) == 0);
  CHECK(hear_out(stranger(hello_of({.world_size = 3, .rank = 0, .purpose = "store"}))) ==
        sizeof(ChallengeBytes));
  const auto one = job.client(1);  // while two say nothing
  one->set("a", "b");
  CHECK(hear_out(silent) == 0);  // after its 200 ms
  CHECK(hear_out(cut) == 0);

  // Many of them at once: the oldest go, the good one gets in.
  std::vector<UniqueFd> crowd;
  for (std::size_t i = 0; i < StoreServer::kMaxPending / 4; ++i)
    crowd.push_back(stranger(std::span(good).first(8)));
  CHECK(job.client(2)->get("a", 60s) == "b");
}

/// Each wrote a line to rank 0's log, so that whoever reaches the port could fill its disk.
TEST_CASE("of many strangers the log has a few lines") {
  set_log_level(LogLevel::kWarning);
  std::FILE* file = std::tmpfile();
  const int before = ::dup(STDERR_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  {
    Job job;
    for (int i = 0; i < 200; ++i) {
      UniqueFd fd = dial(job.server->endpoint(), 5s).value();
      say(fd, bytes_of("GET / HTTP/1.1\r\n\r\n"));
      (void)hear_out(fd);
    }
  }
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  set_log_level(LogLevel::kError);
  std::rewind(file);
  int lines = 0;
  for (int c = 0; (c = std::fgetc(file)) != EOF;) lines += c == '\n' ? 1 : 0;
  std::fclose(file);
  CHECK(lines >= 1);
  CHECK(lines <= 20);
}

TEST_CASE("a wrong key, another size and a proof for something else get no session") {
  set_log_level(LogLevel::kError);
  Job job;
  auto options = job.options(1);
  Verdict verdict = Verdict::kWelcome;
  options.key = random_job_key();
  CHECK(StoreClient::connect(options, &verdict).error().code == ErrorCode::kRefused);
  CHECK(verdict == Verdict::kKey);
  options = job.options(1);
  options.world_size = 4;
  CHECK(StoreClient::connect(options, &verdict).error().code == ErrorCode::kRefused);
  CHECK(verdict == Verdict::kWorldSize);

  // The handshake of a data connection, with the job's key, at the store.
  SystemRandom random;
  UniqueFd fd = dial(job.server->endpoint(), 5s).value();
  ConnectorHandshake data(job.key, {.world_size = 3, .rank = 1}, 0, random);
  say(fd, data.hello());
  ChallengeBytes challenge;
  std::size_t at = 0;
  while (at < challenge.size()) {
    const ssize_t got = ::recv(fd.get(), challenge.data() + at, challenge.size() - at, 0);
    if (got > 0) at += static_cast<std::size_t>(got);
  }
  CHECK(data.on_challenge(challenge).error().code == ErrorCode::kRefused);
  CHECK(data.verdict() == Verdict::kKey);
}

TEST_CASE("after its handshake a client that lies is cut off, and recorded frames do not work again") {
  set_log_level(LogLevel::kError);
  Job job;
  SystemRandom random;
  /// A session by hand.
  const auto session = [&](SessionKey& up) {
    UniqueFd fd = dial(job.server->endpoint(), 5s).value();
    ConnectorHandshake handshake(job.key, {.world_size = 3, .rank = 1, .purpose = "store"}, 0, random);
    const auto hear = [&](auto& message) {
      for (std::size_t at = 0; at < message.size();) {
        const ssize_t got = ::recv(fd.get(), message.data() + at, message.size() - at, 0);
        if (got > 0) at += static_cast<std::size_t>(got);
      }
    };
    ChallengeBytes challenge;
    AcceptBytes accept;
    say(fd, handshake.hello());
    hear(challenge);
    say(fd, handshake.on_challenge(challenge).value());
    hear(accept);
    handshake.on_accept(accept).value();
    up = handshake.session_key("up");
    return fd;
  };
  SessionKey up;
  const UniqueFd replays = session(up);
  SecretSealer first(up);
  const auto frame = sealed(first, encode(set_of("stolen", "once")));
  say(replays, frame);
  CHECK(job.zero->get("stolen", 60s) == "once");
  job.zero->set("stolen", "changed");
  say(replays, frame);
  hear_out(replays);
  SessionKey other;
  const UniqueFd elsewhere = session(other);
  say(elsewhere, frame);  // of another session
  CHECK(hear_out(elsewhere) == 0);
  CHECK(job.zero->get("stolen", 1s) == "changed");

  const UniqueFd endless = session(up);
  std::array<std::byte, kSecretHeaderBytes + kSecretLengthBytes> length;
  length.fill(std::byte{255});
  say(endless, length);
  CHECK(hear_out(endless) == 0);
  const UniqueFd nonsense = session(up);
  SecretSealer of_nonsense(up);
  say(nonsense, sealed(of_nonsense, bytes_of("nonsense")));
  CHECK(hear_out(nonsense) == 0);
  const UniqueFd nameless_one = session(up);
  SecretSealer sealer(up);
  auto nameless = find_of("never", 60'000);
  nameless.id = 0;
  say(nameless_one, sealed(sealer, encode(nameless)));
  CHECK(hear_out(nameless_one) == 0);
  CHECK(job.client(2)->get("stolen", 1s) == "changed");
}

/// A rank had a connection that watched beside one for requests, and up to three more for threads that formed
/// groups, since a wait kept its connection.
// Was: who had left, and hung up as the store was late, was dead where the store found that it could not be
// told of others who had left: the group was aborted in its last barrier.
TEST_CASE("ranks that leave at once and wait for no answer have left, and are not dead") {
  constexpr int kRanks = 8;
  for (int lap = 0; lap < 20; ++lap) {
    Job job(5s, kRanks + 1);
    REQUIRE(job.zero->join("rank 0").status == StoreStatus::kOk);
    std::vector<std::unique_ptr<StoreClient>> all;
    for (int rank = 1; rank <= kRanks; ++rank) {
      all.push_back(job.client(rank));
      REQUIRE(all.back()->join("rank " + std::to_string(rank)).status == StoreStatus::kOk);
    }
    for (const auto& one : all) {
      one->leave(0ms);
      one->interrupt();
    }
    for (int i = 0; i < kRanks; ++i) CHECK_FALSE(job.zero->next_departure().second.died);
  }
}

TEST_CASE("one connection serves many threads at once, and what the store says unasked") {
  const std::size_t descriptors = open_descriptors();
  Job job;
  const auto one = job.client(1);
  const auto two = job.client(2);
  CHECK(one->join("one").status == StoreStatus::kOk);
  CHECK(two->join("two").status == StoreStatus::kOk);
  const std::size_t connected = open_descriptors();
  std::vector<std::thread> waits;
  for (int i = 0; i < 8; ++i)
    waits.emplace_back([&, i] { CHECK(one->get("key " + std::to_string(i), 60s) == "v"); });
  std::thread hears([&] {
    const auto [rank, departure] = one->next_departure();
    CHECK(rank == 2);
    CHECK_FALSE(departure.died);
    CHECK(departure.who == "two");
  });
  for (int i = 0; i < 100; ++i) {  // while eight wait
    one->set("n", std::to_string(i));
    CHECK(one->find("n") == std::to_string(i));
  }
  CHECK(open_descriptors() == connected);
  for (int i = 8; i-- > 0;) two->set("key " + std::to_string(i), "v");
  for (auto& thread : waits) thread.join();
  two->leave(60s);
  hears.join();
  CHECK(descriptors < connected);
}

TEST_CASE("a rank that dies before it has joined is gone for all: the store looks out for it") {
  // A rank that was killed within its handshake with the next store counted as one that lives, and rebuild()
  // of the others waited for it until its timeout.
  Job job;
  CHECK(job.zero->join("zero").status == StoreStatus::kOk);
  std::array<std::array<int, 2>, 3> ends{};
  for (auto& pair : ends)
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) == 0);
  std::array<UniqueFd, 3> theirs;
  for (std::size_t i = 0; i < ends.size(); ++i) theirs[i] = UniqueFd(ends[i][1]);
  job.server->look_out(1, UniqueFd(ends[0][0]), {.died = true, .who = "by a lookout"});
  job.server->look_out(2, UniqueFd(ends[1][0]), {.died = true, .who = "by a lookout"});
  auto one = job.client(1);
  CHECK(one->join("one").status == StoreStatus::kOk);
  job.server->look_out(1, UniqueFd(ends[2][0]), {.died = true, .who = "by another one"});
  theirs[0].reset();  // rank 1 has joined: its connection says how it went
  theirs[2].reset();
  theirs[1].reset();
  const auto [rank, departure] = job.zero->next_departure();
  CHECK(rank == 2);
  CHECK(departure.died);
  CHECK(departure.who == "by a lookout");
  one.reset();
  const auto [next, how] = job.zero->next_departure();
  CHECK(next == 1);
  CHECK(how.who == "one");
}

/// Every rank came over TCP, through the loopback device, the server's own host's too.
TEST_CASE("ranks of the server's host come over a Unix socket, other users and networks over TCP") {
  const auto family_of = [](int fd) {
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length);
    return static_cast<int>(own.ss_family);
  };
  Job job;
  const auto one = job.client(1);
  CHECK(family_of(one->fd()) == AF_UNIX);
  one->set("a", "b");
  CHECK(job.zero->get("a", 60s) == "b");
  // Its name says nothing to who has another key, and a process of another user is sent away.
  auto options = job.options(2);
  options.key = random_job_key();
  CHECK(StoreClient::connect(options).error().code == ErrorCode::kRefused);
  if (::geteuid() != 0) return;
  const pid_t other = fork_process([&] {
    if (::setuid(65'534) != 0) throw std::runtime_error("cannot be another user");
    const auto two = job.client(2);
    if (family_of(two->fd()) != AF_INET) throw std::runtime_error("it is not over TCP");
    if (two->get("a", 60s) != "b") throw std::runtime_error("it does not hear the store");
    if (dial_abstract(store_socket(job.key, job.server->endpoint(), 0)).ok())
      throw std::runtime_error("the Unix socket took another user");
    ::_exit(0);  // without the server, which is the parent's
  });
  CHECK(exit_of(other) == 0);
}
