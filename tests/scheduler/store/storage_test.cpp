#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "runtime/core/fd.hpp"
#include "runtime/core/random.hpp"
#include "scheduler/store/sqlite_storage.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using troupe::test::TempFolder;

namespace {

Bytes bytes(std::string_view text) {
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

void run_sql(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  REQUIRE(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
}

// What every Storage promises, whatever is behind it.
void check_contract(Storage& store) {
  CHECK_FALSE(store.get("a").value().has_value());
  store.put("a/1", bytes("one")).value();
  store.put("a/2", bytes("")).value();
  store.put("b", bytes("other")).value();
  store.put("a/1", bytes("uno")).value();
  CHECK(store.get("a/1").value() == bytes("uno"));
  CHECK(store.get("a/2").value() == Bytes());
  CHECK(store.scan("a/").value() == std::vector<StoreEntry>{{"a/1", bytes("uno")}, {"a/2", {}}});
  CHECK(store.scan("").value().size() == 3);
  CHECK(store.scan("c").value().empty());
  // Keys are bytes and ordered as such: 0xff sorts last, and a prefix that ends in it is no special case.
  store.put("\xff\xff", bytes("last")).value();
  CHECK(store.scan("\xff").value().size() == 1);
  CHECK(store.scan("").value().back().key == "\xff\xff");

  store.apply(StoreBatch().erase("a/1").put("c", bytes("3")).erase("nothing here")).value();
  CHECK_FALSE(store.get("a/1").value().has_value());
  CHECK(store.get("c").value() == bytes("3"));

  CHECK(store.put("", bytes("x")).error().code == ErrorCode::kLimit);
  CHECK(store.put(std::string(kMaxStoreKeyBytes + 1, 'k'), {}).error().code == ErrorCode::kLimit);
  CHECK(store.put("big", Bytes(kMaxStoreValueBytes + 1)).error().code == ErrorCode::kLimit);
  // A batch with one bad change changes nothing.
  CHECK_FALSE(store.apply(StoreBatch().put("good", bytes("x")).put("", bytes("x"))).ok());
  CHECK_FALSE(store.get("good").value().has_value());
}

}  // namespace

TEST_CASE("every storage keeps the same contract") {
  SECTION("in memory") {
    MemoryStorage store;
    check_contract(store);
  }
  SECTION("in SQLite") {
    const TempFolder folder;
    check_contract(*open_sqlite_storage(folder / "new").value());
  }
}

TEST_CASE("what was put is there after the store was closed and opened again") {
  const TempFolder folder;
  open_sqlite_storage(folder.path()).value()->put("key", bytes("value")).value();
  CHECK(open_sqlite_storage(folder.path()).value()->get("key").value() == bytes("value"));
}

TEST_CASE("the files of a store are its owner's alone") {
  const TempFolder folder;
  const auto store = open_sqlite_storage(folder / "new").value();
  store->put("key", bytes("value")).value();
  for (const char* name : {"new", "new/troupe.db", "new/troupe.db-wal", "new/troupe.lock"}) {
    struct stat info {};
    INFO(name);
    REQUIRE(::stat((folder / name).c_str(), &info) == 0);
    CHECK((info.st_mode & 077) == 0);
  }
}

TEST_CASE("a second head on the same folder is told so") {
  const TempFolder folder;
  const auto first = open_sqlite_storage(folder.path()).value();
  const auto second = open_sqlite_storage(folder.path());
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().message().find("another process has it open") != std::string::npos);
}

// Was: a head that was killed while it removed its folder had removed the lock; then nobody took the rest.
TEST_CASE("a store is removed with its lock last, so that another process can go on") {
  const TempFolder base;
  const std::string folder = base.path() + "/store";
  std::filesystem::create_directories(folder + "/packages");
  // Some of them are read after the lock, in whatever order the file system has them.
  for (int i = 0; i < 30; ++i) std::ofstream(folder + "/packages/" + std::to_string(i)) << "of a job";
  for (int i = 0; i < 30; ++i) std::ofstream(folder + "/" + std::to_string(i)) << "of the head";
  open_sqlite_storage(folder).value();
  const UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  REQUIRE(::inotify_add_watch(watch.get(), folder.c_str(), IN_DELETE) >= 0);
  remove_unused_store(folder);
  CHECK_FALSE(std::filesystem::exists(folder));
  std::vector<std::string> removed;
  alignas(inotify_event) char events[4096];
  const ssize_t got = ::read(watch.get(), events, sizeof events);
  for (const char* at = events; at < events + got;) {
    const auto& event = *reinterpret_cast<const inotify_event*>(at);
    if ((event.mask & IN_DELETE) != 0) removed.emplace_back(event.name);
    at += sizeof event + event.len;
  }
  REQUIRE(removed.size() >= 32);
  CHECK(removed.back() == "troupe.lock");
}

TEST_CASE("a store of a newer troupe, of another program, or that is no database is refused and kept") {
  const TempFolder folder;
  const std::string path = folder / "troupe.db";
  SECTION("newer") {
    open_sqlite_storage(folder.path()).value()->put("key", bytes("value")).value();
    run_sql(path, "PRAGMA user_version = 2");
    const auto opened = open_sqlite_storage(folder.path());
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().code == ErrorCode::kRefused);
    CHECK(opened.error().message().find("schema 2") != std::string::npos);
    run_sql(path, "PRAGMA user_version = 1");
    CHECK(open_sqlite_storage(folder.path()).value()->get("key").value() == bytes("value"));
  }
  SECTION("another program's") {
    run_sql(path, "CREATE TABLE photos(id)");
    CHECK(open_sqlite_storage(folder.path()).error().code == ErrorCode::kRefused);
  }
  SECTION("text") {
    std::ofstream(path) << std::string(5000, 'x');
    CHECK(open_sqlite_storage(folder.path()).error().code == ErrorCode::kCorrupt);
    CHECK(std::filesystem::file_size(path) == 5000);
  }
  SECTION("a folder that is a file") {
    std::ofstream(folder / "file") << "x";
    CHECK(open_sqlite_storage(folder / "file").error().code == ErrorCode::kIo);
    CHECK(open_sqlite_storage(folder / "file/sub").error().code == ErrorCode::kIo);
  }
  SECTION("a link in place of the database") {
    std::filesystem::create_symlink("/dev/null", path);
    CHECK(open_sqlite_storage(folder.path()).error().code == ErrorCode::kIo);
  }
}

TEST_CASE("a damaged page is found when the store is opened") {
  const TempFolder folder;
  {
    const auto store = open_sqlite_storage(folder.path()).value();
    for (int i = 0; i < 500; ++i) store->put("key" + std::to_string(i), Bytes(100)).value();
  }
  std::fstream file(folder / "troupe.db", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096 + 4);  // into the header of a b-tree page
  file.write("\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f", 8);
  file.close();
  const auto opened = open_sqlite_storage(folder.path());
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().code == ErrorCode::kCorrupt);
}

// A full disk is simulated by a limit on file size, which gives the same short write.
TEST_CASE("a write that finds no space fails whole, and what was acknowledged stays") {
  const TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    auto store = open_sqlite_storage(folder.path());
    bool fine = store.ok() && (*store)->put("kept", Bytes(1000)).ok();
    const rlimit limit{256 << 10, 256 << 10};
    fine = fine && ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
    const auto refused = (*store)->apply(StoreBatch().put("kept", {}).put("large", Bytes(1 << 20)));
    fine = fine && !refused.ok() && refused.error().code == ErrorCode::kIo &&
           refused.error().why.find("ulimit -f") != std::string::npos;
    fine = fine && (*store)->get("kept").value()->size() == 1000;
    fine = fine && !(*store)->get("large").value().has_value();
    ::_exit(fine ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  const auto store = open_sqlite_storage(folder.path()).value();
  CHECK(store->get("kept").value()->size() == 1000);
  CHECK_FALSE(store->get("large").value().has_value());
}

// A full disk ended the head; and then the head, started again by its launcher, could not open its store,
// because opening it wrote to it. After five deaths the launcher left.
TEST_CASE("a store whose head was killed opens on a full disk, and writes again when there is space") {
  const TempFolder folder;
  const auto in_child = [](auto&& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      body();
      ::_exit(1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
  };
  CHECK(WIFSIGNALED(in_child([&] {
    auto store = open_sqlite_storage(folder.path());
    if (store.ok() && (*store)->put("kept", Bytes(1000)).ok()) ::kill(::getpid(), SIGKILL);
  })));
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{0, RLIM_INFINITY};
    const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
    bool fine = ::setrlimit(RLIMIT_FSIZE, &none) == 0;
    auto store = open_sqlite_storage(folder.path());
    fine = fine && store.ok() && (*store)->get("kept").value()->size() == 1000;
    const auto refused = (*store)->put("more", Bytes(10));
    fine = fine && !refused.ok() && refused.error().code == ErrorCode::kIo &&
           refused.error().why.find("ulimit -f") != std::string::npos;
    fine = fine && ::setrlimit(RLIMIT_FSIZE, &all) == 0 && (*store)->put("more", Bytes(10)).ok();
    ::_exit(fine ? 0 : 2);
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(open_sqlite_storage(folder.path()).value()->get("more").value().has_value());
}

// The promise behind "no acknowledged job is lost": a writer acknowledges each put on a pipe and is killed at
// a random moment. Both halves of every acknowledged batch must be there, and no batch may be there by half.
TEST_CASE("kill -9 of a writer loses no acknowledged put and halves no batch") {
  const std::uint64_t seed = SystemRandom().next();
  CAPTURE(seed);
  SeededRandom random(seed);
  const TempFolder folder;
  std::uint32_t acknowledged = 0;
  for (int round = 0; round < 10; ++round) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto store = open_sqlite_storage(folder.path());
      for (std::uint32_t i = acknowledged; store.ok(); ++i) {
        const std::string key = std::to_string(i);
        if (!(*store)->apply(StoreBatch().put("a" + key, bytes(key)).put("b" + key, bytes(key))).ok()) break;
        if (::write(ends[1], &i, sizeof i) != sizeof i) break;
      }
      ::_exit(1);
    }
    ::close(ends[1]);
    const auto stop_after = acknowledged + 1 + static_cast<std::uint32_t>(random.below(30));
    std::uint32_t i = 0;
    while (::read(ends[0], &i, sizeof i) == sizeof i) {
      acknowledged = i + 1;
      if (acknowledged >= stop_after) ::kill(child, SIGKILL);
    }
    ::close(ends[0]);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));

    const auto store = open_sqlite_storage(folder.path()).value();
    for (std::uint32_t k = 0; k < acknowledged; ++k) {
      const std::string key = std::to_string(k);
      REQUIRE(store->get("a" + key).value() == bytes(key));
      REQUIRE(store->get("b" + key).value() == bytes(key));
    }
    REQUIRE(store->scan("a").value().size() == store->scan("b").value().size());
  }
}

TEST_CASE("a memory storage fails as it is told") {
  MemoryStorage store;
  store.put("a", bytes("1")).value();
  SECTION("refused") {
    store.fail_write(2, MemoryStorage::Fault::kRefuse);
    store.put("a", bytes("2")).value();
    CHECK(store.put("a", bytes("3")).error().code == ErrorCode::kIo);
    CHECK(store.get("a").value() == bytes("2"));
    store.put("a", bytes("4")).value();
    CHECK(store.get("a").value() == bytes("4"));
  }
  SECTION("crashed before the write") {
    store.fail_write(1, MemoryStorage::Fault::kCrashBefore);
    CHECK_FALSE(store.put("a", bytes("2")).ok());
    CHECK_FALSE(store.get("a").ok());
    store.reopen();
    CHECK(store.get("a").value() == bytes("1"));
  }
  SECTION("crashed after the write") {
    store.fail_write(1, MemoryStorage::Fault::kCrashAfter);
    CHECK_FALSE(store.put("a", bytes("2")).ok());
    store.reopen();
    CHECK(store.get("a").value() == bytes("2"));
  }
  SECTION("a disk that lies about its syncs") {
    store.hold_back_syncs(true);
    store.put("a", bytes("2")).value();
    CHECK(store.get("a").value() == bytes("2"));
    store.crash();
    store.reopen();
    CHECK(store.get("a").value() == bytes("1"));
  }
}
