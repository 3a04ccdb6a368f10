#include "runtime/security/join_token.hpp"

#include <catch2/catch.hpp>

#include "runtime/security/admission.hpp"
#include "tests/runtime/link/link_fixture.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

JoinToken some_token(const std::string& host = "head.example") {
  return {{host, 6380},
          CurveKeyPair::generate().public_key(),
          CurveKeyPair::generate(),
          0x0123456789abcdef,
          900s};
}

/// A head's register on a store and clock that the test drives.
struct Register {
  ManualClock clock;
  MemoryStorage storage;
  std::shared_ptr<Authorizer> authorizer = std::make_shared<Authorizer>(clock);
  PublicKey head_key = CurveKeyPair::generate().public_key();
  std::unique_ptr<Admission> admission = open("boot 1");

  std::unique_ptr<Admission> open(const std::string& boot_id) {
    authorizer = std::make_shared<Authorizer>(clock);
    return Admission::open(storage, authorizer, clock, boot_id).value();
  }
  void restart(const std::string& boot_id = "boot 1") { admission = open(boot_id); }
  JoinToken issue(std::chrono::seconds lifetime = 900s) {
    return admission->issue({"10.0.0.1", 6380}, head_key, lifetime).value();
  }
  std::string name_of(const CurveKeyPair& pair) {
    return authorizer->find(pair.public_key()).value_or("nobody");
  }
};

}  // namespace

TEST_CASE("a join token survives being text") {
  for (const char* host : {"head.example", "10.0.0.1", "fe80::1"}) {
    const JoinToken token = some_token(host);
    const std::string text = write_join_token(token);
    CHECK(text.starts_with("troupe-join-v1."));
    CHECK(text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", 15) ==
          std::string::npos);
    const JoinToken read = read_join_token(text).value();
    CHECK(read.head == token.head);
    CHECK(read.head_key == token.head_key);
    CHECK(read.one_time.secret_key() == token.one_time.secret_key());
    CHECK(read.id == token.id);
    CHECK(read.lifetime == token.lifetime);
  }
}

TEST_CASE("a token that was changed or cut is refused, and its error quotes none of it") {
  const std::string text = write_join_token(some_token());
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = changed[at] == 'A' ? 'B' : 'A';
    const auto read = read_join_token(changed);
    REQUIRE_FALSE(read.ok());
    REQUIRE(read.error().message().find(text.substr(20, 12)) == std::string::npos);
    REQUIRE_FALSE(read_join_token(text.substr(0, at)).ok());
  }
  CHECK_FALSE(read_join_token(text + "A").ok());
  CHECK_FALSE(read_join_token(text + "\n").ok());
  CHECK_FALSE(read_join_token(text + std::string(100000, 'A')).ok());
}

TEST_CASE("a token lets one machine in, once") {
  Register head;
  const JoinToken token = head.issue();
  const std::string guest = head.name_of(token.one_time);
  REQUIRE(is_join_name(guest));
  const CurveKeyPair node = CurveKeyPair::generate();
  CHECK(head.name_of(node) == "nobody");
  head.admission->enroll(guest, node.public_key(), "node-1").value();
  CHECK(head.name_of(node) == "node-1");
  CHECK(head.name_of(token.one_time) == "nobody");

  const CurveKeyPair second = CurveKeyPair::generate();
  const auto again = head.admission->enroll(guest, second.public_key(), "node-2");
  REQUIRE_FALSE(again.ok());
  CHECK(again.error().code == ErrorCode::kRefused);
  CHECK(again.error().message().find("used before") != std::string::npos);
  CHECK(head.name_of(second) == "nobody");
}

TEST_CASE("a token runs out") {
  Register head;
  const JoinToken token = head.issue(60s);
  const std::string guest = head.name_of(token.one_time);
  head.clock.advance(60s - 1ns);
  CHECK(head.name_of(token.one_time) == guest);
  head.clock.advance(1ns);
  CHECK(head.name_of(token.one_time) == "nobody");
  const auto late = head.admission->enroll(guest, CurveKeyPair::generate().public_key(), "node-1");
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().message().find("run out") != std::string::npos);
  head.admission->sweep().value();
  CHECK(head.storage.scan("security/token/").value().empty());
}

TEST_CASE(
    "a head that restarts knows its nodes and its open tokens; after a reboot the tokens have run out") {
  Register head;
  const CurveKeyPair node = CurveKeyPair::generate();
  const JoinToken used = head.issue();
  head.admission->enroll(head.name_of(used.one_time), node.public_key(), "node-1").value();
  const JoinToken open = head.issue(60s);
  const std::string guest = head.name_of(open.one_time);

  head.restart();
  CHECK(head.name_of(node) == "node-1");
  CHECK(head.name_of(open.one_time) == guest);
  CHECK(head.name_of(used.one_time) == "nobody");
  head.restart("boot 2");
  CHECK(head.name_of(node) == "node-1");
  CHECK(head.name_of(open.one_time) == "nobody");
  CHECK(head.storage.scan("security/token/").value().empty());
}

// The disk comes first: a crash at any write leaves a token that is either open or used, never both.
TEST_CASE("an enrollment that fails or crashes at its write is whole or never was") {
  for (const auto fault : {MemoryStorage::Fault::kRefuse, MemoryStorage::Fault::kCrashBefore,
                           MemoryStorage::Fault::kCrashAfter}) {
    Register head;
    const JoinToken token = head.issue();
    const std::string guest = head.name_of(token.one_time);
    const CurveKeyPair node = CurveKeyPair::generate();
    head.storage.fail_write(1, fault);
    CHECK_FALSE(head.admission->enroll(guest, node.public_key(), "node-1").ok());
    CHECK(head.name_of(node) == "nobody");
    CHECK(head.name_of(token.one_time) == guest);
    head.storage.reopen();
    head.restart();
    const bool enrolled = fault == MemoryStorage::Fault::kCrashAfter;
    CHECK(head.name_of(node) == (enrolled ? "node-1" : "nobody"));
    CHECK(head.name_of(token.one_time) == (enrolled ? "nobody" : guest));
  }
}

TEST_CASE("only a guest enrolls, under a name that is free and readable") {
  Register head;
  const JoinToken token = head.issue();
  const std::string guest = head.name_of(token.one_time);
  const PublicKey key = CurveKeyPair::generate().public_key();
  head.admission->add_peer(CurveKeyPair::generate().public_key(), "node-1").value();
  for (const char* from :
       {"", "node-1", "join/", "join/zz", "join/12 ", "join/-1", "join/123456789123456789"}) {
    CAPTURE(from);
    CHECK(head.admission->enroll(from, key, "node-2").error().code == ErrorCode::kRefused);
  }
  for (const char* name : {"", "join/1", "two words", "line\n"}) {
    CHECK(head.admission->enroll(guest, key, name).error().code == ErrorCode::kBadInput);
  }
  CHECK_FALSE(head.admission->enroll(guest, key, std::string(kMaxPeerNameBytes + 1, 'n')).ok());
  CHECK(head.admission->enroll(guest, key, "node-1").error().message().find("another key") !=
        std::string::npos);
  CHECK_FALSE(head.admission->enroll(guest, token.one_time.public_key(), "node-2").ok());
  // Was: whoever was in shut out another one by that one's public key, which is no secret.
  const PublicKey of_another = head.admission->peers().begin()->first;
  CHECK(head.admission->enroll(guest, of_another, "node-2").error().code == ErrorCode::kRefused);
  CHECK(head.admission->add_peer(of_another, "node-2").error().code == ErrorCode::kRefused);
  CHECK(head.authorizer->find(of_another) == "node-1");
  CHECK(head.admission->enroll(guest, key, "node-2").ok());
  head.admission->remove("node-2").value();
  CHECK_FALSE(head.authorizer->find(key).has_value());
}

// SECURITY.md said "remove it", and nothing could.
TEST_CASE("a machine that is removed is shut out with the nodes that it brought, and no others") {
  Register head;
  const auto machine = CurveKeyPair::generate(), node = CurveKeyPair::generate(),
             other = CurveKeyPair::generate();
  head.admission->enroll(head.name_of(head.issue().one_time), machine.public_key(), "machine/1").value();
  head.admission->add_peer(node.public_key(), "a1", "machine/1").value();
  head.admission->add_peer(other.public_key(), "b1", "owner").value();
  const bool restarts = GENERATE(false, true);
  if (restarts) head.restart();
  CHECK(head.admission->remove("").value().empty());
  CHECK(head.admission->remove("machine/2").value().empty());

  head.storage.fail_write(1, MemoryStorage::Fault::kRefuse);
  CHECK_FALSE(head.admission->remove("machine/1").ok());
  CHECK(head.name_of(machine) == "machine/1");
  CHECK(head.name_of(node) == "a1");

  CHECK(head.admission->remove("machine/1").value().size() == 2);
  if (restarts) head.restart();
  CHECK(head.name_of(machine) == "nobody");
  CHECK(head.name_of(node) == "nobody");
  CHECK(head.name_of(other) == "b1");
}

TEST_CASE("tokens are bounded in number and in life") {
  Register head;
  for (const auto lifetime : {0s, -1s, std::chrono::seconds(31 * 24h)}) {
    CHECK(head.admission->issue({"h", 1}, head.head_key, lifetime).error().code == ErrorCode::kBadConfig);
  }
  TokenBook book;
  for (std::uint64_t id = 1; id <= kMaxOpenTokens; ++id) book.add({id, {}, 1s}).value();
  CHECK(book.add({7777777, {}, 1s}).error().code == ErrorCode::kLimit);
  CHECK(book.expire(2s).size() == kMaxOpenTokens);
  book.add({1, {}, 1s}).value();
  CHECK(book.add({1, {}, 1s}).error().code == ErrorCode::kRefused);
}

TEST_CASE("a register that does not decode stops the head instead of letting somebody in or out") {
  Register head;
  const std::byte junk[] = {std::byte{1}};
  for (const std::string key : {"security/token/1", "security/peer/short"}) {
    MemoryStorage storage;
    storage.put(key, junk).value();
    const auto opened = Admission::open(storage, head.authorizer, head.clock, "boot 1");
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().code == ErrorCode::kCorrupt);
  }
}

// Was: a machine was let in no more, or as another one, and nobody knew why.
TEST_CASE(
    "a changed bit of what the head's store has of a machine or a token is an error that names the entry") {
  Register head;
  MemoryStorage written;
  const auto first = Admission::open(written, head.authorizer, head.clock, "boot 1").value();
  first->issue({"h", 1}, head.head_key, 60s).value();
  first->add_peer(CurveKeyPair::generate().public_key(), "node/1", "machine/a").value();
  const auto opened = [&](const std::string& key, const std::string& value) {
    MemoryStorage storage;
    storage.put(key, std::as_bytes(std::span(value))).value();
    return Admission::open(storage, std::make_shared<Authorizer>(head.clock), head.clock, "boot 1");
  };
  for (const StoreEntry& entry : written.scan("security/").value()) {
    const std::string good(reinterpret_cast<const char*>(entry.value.data()), entry.value.size());
    CHECK(opened(entry.key, good).ok());
    const std::size_t zero = good.size() - 5;
    for (std::size_t i = 0; i < good.size(); ++i) {
      if (i == zero) continue;
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      const auto refused = opened(entry.key, bad);
      INFO(entry.key << ", byte " << i);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.error().what == "cannot use the store's entry " + entry.key);
      CHECK_THAT(refused.error().why, Catch::StartsWith("it is damaged: "));
    }
    std::string other = entry.key;
    other.back() = other.back() == '7' ? '8' : '7';
    CHECK_FALSE(opened(other, good).ok());
    CHECK(opened(entry.key, good.substr(0, zero)).ok());  // of before there were check words
  }
}

// The whole way, on real sockets: token, guest connection, enrollment, own key, and the token again.
TEST_CASE("a machine joins with a token and comes back with its own key") {
  test::Head head;
  MemoryStorage storage;
  const auto admission = Admission::open(storage, head.authorizer, head.clock, current_boot_id()).value();
  const std::string text =
      write_join_token(admission->issue(head.address(), head.keys.public_key(), 900s).value());

  const JoinToken token = read_join_token(text).value();
  test::Node guest;
  guest.keys = token.one_time;
  guest.connect(head, token.head_key, token.head, 20s).value();
  const std::string name = head.authorizer->find(token.one_time.public_key()).value();
  REQUIRE(head.record.wait_for(name + " connected"));

  test::Node node;
  CHECK(node.connect(head).error().code == ErrorCode::kRefused);
  admission->enroll(name, node.keys.public_key(), "node-1").value();
  CHECK(guest.send("may I stay?"));
  CHECK(head.record.wait_for(name + " gone"));
  CHECK(head.record.count(name + ": may I stay?") == 0);
  node.connect(head).value();
  CHECK(head.record.wait_for("node-1 connected"));

  test::Node thief;
  thief.keys = token.one_time;
  CHECK(thief.connect(head).error().code == ErrorCode::kRefused);
}
