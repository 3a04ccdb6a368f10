#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <new>
#include <type_traits>

#include "runtime/security/bind_policy.hpp"
#include "runtime/security/key_folder.hpp"
#include "runtime/security/zap_handler.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using troupe::test::TempFolder;

namespace {

std::vector<std::byte> read_all(const UniqueFd& fd) {
  std::vector<std::byte> bytes(1 << 20);
  const ssize_t got = ::pread(fd.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return bytes;
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 0777;
}

template <class T>
concept Printable = requires(T value) {
  std::string(value);
}
|| requires(T value) {
  to_string(value);
};

KeyBundle some_bundle() {
  return {CurveKeyPair::generate(),
          CurveKeyPair::generate().public_key(),
          {{CurveKeyPair::generate().public_key(), "node-1"},
           {CurveKeyPair::generate().public_key(), std::string(kMaxPeerNameBytes, 'n')}}};
}

}  // namespace

TEST_CASE("a secret leaves nothing behind and has no text") {
  static_assert(!Printable<JobKey> && Printable<PublicKey>);
  static_assert(!std::is_convertible_v<JobKey, std::string>);
  alignas(JobKey) std::array<std::byte, sizeof(JobKey)> memory{};
  auto* secret = new (memory.data()) JobKey(JobKey::generate());
  CHECK_FALSE(*secret == JobKey());
  const JobKey copy = *secret;
  CHECK(copy == *secret);
  secret->~JobKey();
  CHECK(memory == std::array<std::byte, sizeof(JobKey)>{});
  CHECK_FALSE(JobKey::generate() == JobKey::generate());
}

TEST_CASE("our pairs are the pairs that ZeroMQ computes") {
  const CurveKeyPair pair = CurveKeyPair::generate();
  std::array<char, 41> secret{};
  std::array<char, 41> derived{};
  zmq_z85_encode(secret.data(), reinterpret_cast<const std::uint8_t*>(pair.secret_key().reveal().data()), 32);
  REQUIRE(zmq_curve_public(derived.data(), secret.data()) == 0);
  CHECK(to_string(pair.public_key()) == derived.data());
  CHECK(parse_public_key(derived.data()).value() == pair.public_key());
}

TEST_CASE("a public key that is cut or too long is an error") {
  const std::string good = to_string(CurveKeyPair::generate().public_key());
  CHECK(parse_public_key(good).ok());
  CHECK_FALSE(parse_public_key("").ok());
  CHECK_FALSE(parse_public_key(good.substr(1)).ok());
  CHECK_FALSE(parse_public_key(good + "0").ok());
}

TEST_CASE("keys go to a child in a sealed memory file and nowhere else") {
  const KeyBundle bundle = some_bundle();
  auto fd = hand_over(bundle).value();
  CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(::write(fd.get(), "x", 1) == -1);
  const KeyBundle taken = take_over(std::move(fd)).value();
  CHECK(taken.own.secret_key() == bundle.own.secret_key());
  CHECK(taken.own.public_key() == bundle.own.public_key());
  CHECK(taken.head == bundle.head);
  CHECK(taken.allowed == bundle.allowed);
}

TEST_CASE("a memory file that others could still change, or a plain file, is refused") {
  const auto bytes = read_all(hand_over(some_bundle()).value());
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::write(unsealed.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  const auto refused = take_over(std::move(unsealed));
  CHECK_FALSE(refused.ok());
  CHECK_FALSE(take_over(UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC))).ok());
  CHECK_FALSE(take_over(UniqueFd()).ok());
}

TEST_CASE("a key bundle that is cut is an error") {
  const auto good = read_all(hand_over(some_bundle()).value());
  REQUIRE(decode_key_bundle(good).ok());
  for (std::size_t size = 0; size < good.size(); ++size)
    REQUIRE_FALSE(decode_key_bundle(std::span(good).first(size)).ok());
}

TEST_CASE("a key folder generates each key once and keeps it to its owner") {
  const TempFolder parent;
  const std::string path = parent / "keys";
  const auto first = KeyFolder::open(path).value().load_or_generate("head").value();
  CHECK(mode_of(path) == 0700);
  CHECK(mode_of(path + "/head.key") == 0600);
  const auto again = KeyFolder::open(path).value().load_or_generate("head").value();
  CHECK(again.secret_key() == first.secret_key());
  const auto folder = KeyFolder::open(path).value();
  CHECK_FALSE(folder.load("node").value().has_value());
  CHECK_FALSE(folder.load_or_generate("node").value().secret_key() == first.secret_key());

  CHECK_FALSE(folder.load_public("head").value().has_value());
  folder.save_public("head", CurveKeyPair::generate().public_key()).value();
  folder.save_public("head", first.public_key()).value();
  CHECK(folder.load_public("head").value() == first.public_key());
  // Was: what was there was written again, so a head could not come back on a full disk.
  const auto written = std::filesystem::last_write_time(path + "/head.pub");
  std::filesystem::last_write_time(path + "/head.pub", written - std::chrono::hours(1));
  folder.save_public("head", first.public_key()).value();
  CHECK(std::filesystem::last_write_time(path + "/head.pub") == written - std::chrono::hours(1));
  // Nothing but what has a name lies there.
  CHECK(std::distance(std::filesystem::directory_iterator(path), {}) == 3);
  for (const char* role : {"", "../head", "HEAD", "a/b", "."}) {
    CHECK(folder.load_or_generate(role).error().code == ErrorCode::kBadConfig);
  }
}

// Was: "Permission denied (give a folder, not a link)".
TEST_CASE("a key folder that cannot be opened gives the advice that fits") {
  const TempFolder parent;
  REQUIRE(::chmod(parent.path().c_str(), 0755) == 0);
  const std::string path = parent / "keys", link = parent / "link";
  KeyFolder::open(path).value();
  REQUIRE(::symlink(path.c_str(), link.c_str()) == 0);
  CHECK(KeyFolder::open(link).error().todo == "give a folder, not a link or a file");
  REQUIRE(::chmod(path.c_str(), 0) == 0);
  const bool is_root = ::geteuid() == 0;
  if (is_root) REQUIRE(::seteuid(65534) == 0);
  const auto theirs = KeyFolder::open(path);
  const auto beside = KeyFolder::open(parent / "new");
  if (is_root) REQUIRE(::seteuid(0) == 0);
  REQUIRE_FALSE(theirs.ok());
  CHECK_THAT(theirs.error().todo, Catch::StartsWith("it is another user's: "));
  if (is_root) CHECK_THAT(beside.error().todo, Catch::StartsWith("make its parent writable, or "));
}

TEST_CASE("keys that others could read, or that are not ours, are refused") {
  const TempFolder parent;
  const std::string path = parent / "keys";
  const auto folder = KeyFolder::open(path).value();
  folder.load_or_generate("head").value();
  const std::string file = path + "/head.key";
  SECTION("a group-readable key") {
    REQUIRE(::chmod(file.c_str(), 0640) == 0);
    const auto refused = folder.load_or_generate("head");
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::kRefused);
    CHECK(refused.error().message().find(file) != std::string::npos);
    CHECK(refused.error().message().find("chmod 600") != std::string::npos);
  }
  SECTION("a world-readable key") {
    REQUIRE(::chmod(file.c_str(), 0604) == 0);
    CHECK(folder.load("head").error().code == ErrorCode::kRefused);
  }
  SECTION("an open folder") {
    REQUIRE(::chmod(path.c_str(), 0755) == 0);
    CHECK(KeyFolder::open(path).error().code == ErrorCode::kRefused);
  }
  SECTION("a link in place of a key") {
    REQUIRE(::rename(file.c_str(), (parent / "elsewhere").c_str()) == 0);
    std::filesystem::create_symlink(parent / "elsewhere", file);
    CHECK_FALSE(folder.load("head").ok());
    CHECK_FALSE(folder.load_or_generate("head").ok());
  }
  SECTION("a link in place of the folder") {
    std::filesystem::create_symlink(path, parent / "link");
    CHECK_FALSE(KeyFolder::open(parent / "link").ok());
  }
  SECTION("another user's key") {
    if (::geteuid() != 0) return;  // only root can give a file away
    REQUIRE(::chown(file.c_str(), 1, 1) == 0);
    const auto refused = folder.load("head");
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message().find("belongs to user 1") != std::string::npos);
  }
  SECTION("a pipe in place of a key") {
    REQUIRE(::unlink(file.c_str()) == 0);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    CHECK_FALSE(folder.load("head").ok());
  }
  SECTION("a parent that is not there") {
    CHECK(KeyFolder::open(parent / "no/keys").error().code == ErrorCode::kIo);
  }
}

TEST_CASE("a key file of any other size or form is refused") {
  const TempFolder parent;
  const auto folder = KeyFolder::open(parent / "keys").value();
  folder.load_or_generate("head").value();
  const std::string file = parent / "keys/head.key";
  const std::string good = test::read_file(file);
  REQUIRE(good.size() == 49);
  const auto write = [&](const std::string& text) { std::ofstream(file, std::ios::binary) << text; };
  for (std::size_t size = 0; size < good.size(); ++size) {
    write(good.substr(0, size));
    REQUIRE(folder.load("head").error().code == ErrorCode::kCorrupt);
  }
  write(good + "x");
  CHECK(folder.load("head").error().code == ErrorCode::kCorrupt);
  write("Troupe" + good.substr(6));
  CHECK(folder.load("head").error().code == ErrorCode::kCorrupt);
  write(good);
  CHECK(folder.load("head").value().has_value());
  write("troupe key 1\n" + good.substr(13, 32));  // of before there were check words
  CHECK(folder.load("head").value().has_value());
}

// Was: another key was used, and who asked the head heard of a refusal or of nothing; and of a head.key that
// was no key file "delete it and join the cluster again", as if it were not the head's own.
TEST_CASE(
    "a changed bit of a key file is an error that names the file, and says what doing without it costs") {
  const TempFolder parent;
  const auto folder = KeyFolder::open(parent / "keys").value();
  folder.save_public("head", folder.load_or_generate("head").value().public_key()).value();
  folder.load_or_generate("machine").value();
  const auto error_of = [&](const std::string& name) {
    const std::string file = parent / "keys/" + name;
    const std::string good = test::read_file(file);
    ErrorInfo error;
    for (std::size_t i = 13; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
      std::ofstream(file, std::ios::binary) << bad;
      const auto read = name == "head.pub" ? folder.load_public("head").error()
                                           : folder.load(name.substr(0, name.size() - 4)).error();
      REQUIRE(read.code == ErrorCode::kCorrupt);
      error = read;
    }
    std::ofstream(file, std::ios::binary) << good;
    CHECK(error.what == "cannot use the key " + file);
    CHECK_THAT(error.why, Catch::StartsWith("it is damaged: "));
    return error.todo;
  };
  CHECK_THAT(error_of("head.key"), Catch::Contains("every other machine must join again") &&
                                       Catch::Contains("jobs and queues stay"));
  CHECK_THAT(error_of("head.pub"), Catch::Contains("the head's next start writes it"));
  CHECK_THAT(error_of("machine.key"), Catch::Contains("needs a restart"));
  CHECK(folder.load("head").value().has_value());
}

TEST_CASE("processes that start at once agree on one key") {
  const TempFolder parent;
  const std::string path = parent / "keys";
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto folder = KeyFolder::open(path);
      const auto pair = folder.ok() ? folder->load_or_generate("head") : Result<CurveKeyPair>(folder.error());
      if (!pair.ok()) ::_exit(1);
      std::ofstream(parent / std::to_string(::getpid())) << to_string(pair->public_key());
      ::_exit(0);
    }
    children.push_back(child);
  }
  const auto read = [&](pid_t child) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    return test::read_file(parent / std::to_string(child));
  };
  const std::string first = read(children[0]);
  CHECK(first.size() == 40);
  for (std::size_t i = 1; i < children.size(); ++i) CHECK(read(children[i]) == first);
}

TEST_CASE("only loopback may be listened on without keys") {
  for (const char* host : {"127.0.0.1", "127.8.9.10", "::1", "localhost"}) {
    CHECK(check_bind({host, 0}, false).ok());
    CHECK(check_bind({host, 0}, true).ok());
  }
  for (const char* host : {"0.0.0.0", "::", "192.168.1.1", "::ffff:127.0.0.1", "128.0.0.1"}) {
    const auto refused = check_bind({host, 0}, false);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::kRefused);
    CHECK(check_bind({host, 0}, true).ok());
  }
  for (const char* host : {"", "*", "example.org", "127.0.0.1 ", "127.1", "eth0"}) {
    CHECK(check_bind({host, 0}, true).error().code == ErrorCode::kBadConfig);
    CHECK(check_bind({host, 0}, false).error().code == ErrorCode::kBadConfig);
  }
}

TEST_CASE("addresses are read as people write them") {
  CHECK(parse_endpoint("127.0.0.1:80").value() == Endpoint{"127.0.0.1", 80});
  CHECK(parse_endpoint("[::1]:65535").value() == Endpoint{"::1", 65535});
  CHECK(parse_endpoint("head.example:0").value() == Endpoint{"head.example", 0});
  for (const char* text : {"", ":", "host", "host:", ":80", "host:65536", "host:-1", "host:8x", "::1:80",
                           "[::1]", "[x]:1", "a b:1", "[]:1", "host:1:2", "host: 1"}) {
    CAPTURE(text);
    CHECK(parse_endpoint(text).error().code == ErrorCode::kBadInput);
  }
}

TEST_CASE("a name is known as long as its key is let in") {
  ManualClock clock;
  Authorizer authorizer(clock);
  const PublicKey key = CurveKeyPair::generate().public_key(), next = CurveKeyPair::generate().public_key();
  authorizer.allow(key, "guest", clock.now() + std::chrono::seconds(1));
  CHECK(authorizer.knows("guest"));
  clock.advance(std::chrono::seconds(1));
  CHECK_FALSE(authorizer.knows("guest"));
  authorizer.allow(key, "node");
  CHECK(authorizer.knows("node"));
  CHECK_FALSE(authorizer.knows("guest"));
  authorizer.allow(next, "node");
  authorizer.revoke(key);
  CHECK(authorizer.knows("node"));
  authorizer.revoke(next);
  CHECK_FALSE(authorizer.knows("node"));
}

TEST_CASE("the doorkeeper lets known CURVE keys of our domain in and nobody else") {
  ManualClock clock;
  Authorizer authorizer(clock);
  const PublicKey key = CurveKeyPair::generate().public_key();
  authorizer.allow(key, "node");
  const std::string raw(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size());
  const std::vector<std::string> good = {"1.0", "17", "troupe", "10.0.0.1", "", "CURVE", raw};
  const auto accepted = judge_zap_request(good, authorizer);
  CHECK(accepted.accepted);
  CHECK(accepted.request_id == "17");
  CHECK(accepted.user_id == to_string(key));

  const std::pair<std::size_t, const char*> changes[] = {{0, "2.0"},  {2, ""},      {2, "global"},
                                                         {5, "NULL"}, {5, "PLAIN"}, {6, "short"}};
  for (const auto& [frame, text] : changes) {
    auto frames = good;
    frames[frame] = text;
    CHECK_FALSE(judge_zap_request(frames, authorizer).accepted);
  }
  for (std::size_t count = 0; count < good.size(); ++count) {
    CHECK_FALSE(
        judge_zap_request({good.begin(), good.begin() + static_cast<long>(count)}, authorizer).accepted);
  }
  auto longer = good;
  longer.push_back("");
  CHECK_FALSE(judge_zap_request(longer, authorizer).accepted);
  for (std::size_t bit = 0; bit < raw.size() * 8; ++bit) {
    auto frames = good;
    frames[6][bit / 8] = static_cast<char>(frames[6][bit / 8] ^ (1 << (bit % 8)));
    REQUIRE_FALSE(judge_zap_request(frames, authorizer).accepted);
  }
  CHECK_FALSE(judge_zap_request(good, authorizer, "troupe-2").accepted);
  authorizer.revoke(key);
  CHECK_FALSE(judge_zap_request(good, authorizer).accepted);
}

TEST_CASE("a context has one doorkeeper") {
  zmq::context_t context;
  const auto first = ZapHandler::start(context);
  REQUIRE(first.ok());
  CHECK_FALSE(ZapHandler::start(context).ok());
}
