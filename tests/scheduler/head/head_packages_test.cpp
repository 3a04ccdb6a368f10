// How long the head keeps what travels with submitted jobs.
#include "scheduler/head/head_packages.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/node/package.hpp"
#include "runtime/package/package_source.hpp"

using namespace troupe;
namespace fs = std::filesystem;

namespace {

struct Shelves {
  Shelves() {
    std::string name = (fs::temp_directory_path() / "troupe-head-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
    fs::create_directories(root + "/app");
    std::ofstream(root + "/app/file") << "text";
    source.emplace(PackageSource::of_folder(root + "/app").value());
    start();
  }
  ~Shelves() {
    head.reset();
    fs::remove_all(root);
  }
  Shelves(const Shelves&) = delete;
  Shelves& operator=(const Shelves&) = delete;

  void start() {
    head.reset();
    loop.emplace();
    head.emplace(*loop, root + "/packages");
    REQUIRE(head->open(is_named));
  }
  Result<wire::PackageHeld> put(const std::string& client, std::uint64_t offset, wire::Bytes bytes) {
    std::optional<Result<wire::PackageHeld>> answer;
    head->put(client, {source->id(), offset, source->bytes(), std::move(bytes)},
              [&](Result<wire::PackageHeld> held) {
                answer.emplace(std::move(held));
                loop->pause();
              });
    loop->run();
    return *answer;
  }
  void bring(const std::string& client) {
    REQUIRE(put(client, 0, source->read(0, 10).value()).value().next == 10);
    for (std::uint64_t at = 10; at < source->bytes();)
      at = put(client, at, source->read(at, 1000).value()).value().next;
  }
  wire::PackagePart read() {
    std::optional<wire::PackagePart> part;
    head->read({source->id(), 0}, [&](wire::PackagePart given) {
      part = std::move(given);
      loop->pause();
    });
    loop->run();
    return *part;
  }
  bool is_here() { return !head->is_missing(source->id()) && read().total == source->bytes(); }

  std::string root;
  std::optional<PackageSource> source;
  std::optional<EventLoop> loop;
  std::optional<HeadPackages> head;
  bool named = false;
  std::function<bool(const std::string&)> is_named = [this](const std::string&) { return named; };
};

}  // namespace

TEST_CASE("a package is kept while a client holds it or a record names it, and no longer") {
  Shelves s;
  CHECK(s.head->is_missing(s.source->id())->code == ErrorCode::kUnavailable);
  CHECK(s.read().total == 0);
  s.bring("client/a");
  CHECK(s.put("client/b", 0, {}).value().whole);  // asked, and not sent again
  s.head->client_went("client/a");
  s.head->tick(s.is_named);
  CHECK(s.is_here());
  s.named = true;
  s.head->client_went("client/b");
  s.head->tick(s.is_named);
  CHECK(s.is_here());
  s.start();  // a head that was started again
  CHECK(s.is_here());
  s.named = false;
  s.head->tick(s.is_named);
  CHECK_FALSE(s.is_here());
  CHECK(s.read().total == 0);
  CHECK(fs::is_empty(s.root + "/packages"));
}

// Was: the head gave it out as it was, every node refused it with "submit the job again", and a client that
// did so was told that the head has it already: it failed for ever.
TEST_CASE("a package that the head's disk has spoilt is given to nobody, and brought again") {
  Shelves s;
  s.named = true;
  const auto spoil = [&](std::uint64_t at) {
    std::fstream file(s.root + "/packages/" + s.source->id(),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('X');
  };
  // In its first word, the size of its list of files (was: kept), that list and the last file.
  for (const std::uint64_t at :
       {std::uint64_t{0}, std::uint64_t{15}, s.source->bytes() / 2, s.source->bytes() - 1}) {
    CAPTURE(at);
    s.bring("client/a");
    REQUIRE(s.is_here());
    spoil(at);
    CHECK(s.read().total == 0);
    CHECK(s.head->is_missing(s.source->id())->code == ErrorCode::kUnavailable);
    CHECK(s.put("client/b", 0, {}).value().next == 0);  // who submits it again sends it
  }
  for (const std::uint64_t left : {std::uint64_t{0}, s.source->bytes() - 1}) {
    CAPTURE(left);
    s.bring("client/a");
    fs::resize_file(s.root + "/packages/" + s.source->id(), left);
    CHECK(s.read().total == 0);
    CHECK(s.put("client/b", 0, {}).value().next == 0);
  }
  s.bring("client/a");
  std::optional<wire::PackagePart> none;  // a question that makes no sense spoils nothing
  s.head->read({s.source->id(), s.source->bytes() + 1}, [&](wire::PackagePart part) {
    none = std::move(part);
    s.loop->pause();
  });
  s.loop->run();
  CHECK(none->total == 0);
  CHECK(s.is_here());
}

TEST_CASE("what a client left half brought goes with it, and what no record names with the head") {
  Shelves s;
  s.put("client/a", 0, s.source->read(0, 10).value()).value();
  CHECK(s.put("client/b", 0, {}).value().next == 10);  // another goes on with it
  s.head->client_went("client/a");
  s.head->tick(s.is_named);
  CHECK(s.put("client/b", 0, {}).value().next == 10);
  s.head->client_went("client/b");
  s.head->tick(s.is_named);
  CHECK(s.put("client/c", 0, {}).value().next == 0);
  s.bring("client/c");
  s.start();
  CHECK_FALSE(s.is_here());
  CHECK(fs::is_empty(s.root + "/packages"));
  HeadPackages none(*s.loop, "");
  REQUIRE(none.open(s.is_named));
  CHECK(none.is_missing(s.source->id())->code == ErrorCode::kRefused);
}
