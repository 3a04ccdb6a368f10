// The folders of embedded clusters: which ones a later program removes.
#include "scheduler/init/temporary_folder.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/link/socket/first_exchange.hpp"
#include "runtime/node/child.hpp"
#include "runtime/node/program.hpp"
#include "scheduler/init/supervisor.hpp"
#include "scheduler/store/sqlite_storage.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

constexpr Duration kAnyAge = -1h;

std::string make_folder(const std::string& base) {
  std::string folder = choose_temporary_folder(base);
  open_sqlite_storage(folder).value().reset();  // a head that was killed
  REQUIRE(fs::exists(folder));
  return folder;
}

/// Within a while: a process that was forked meanwhile holds the locks, too, until it executes.
bool is_removed(const std::string& base, const std::vector<std::string>& folders) {
  return test::eventually([&] {
    remove_abandoned_folders(base, kAnyAge);
    return std::none_of(folders.begin(), folders.end(), [](const auto& one) { return fs::exists(one); });
  });
}

}  // namespace

TEST_CASE("the folder is in /tmp where XDG_RUNTIME_DIR is not set, or set to nothing", "[folder]") {
  const char* before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("XDG_RUNTIME_DIR", "", 1);
  CHECK(temporary_base() == "/tmp");  // was: an error about a folder without a name
  ::unsetenv("XDG_RUNTIME_DIR");
  CHECK(temporary_base() == "/tmp");
  if (before != nullptr) ::setenv("XDG_RUNTIME_DIR", kept.c_str(), 1);
}

TEST_CASE("each name that is chosen is one that a later program removes", "[folder]") {
  // Was: one of sixteen numbers has a digit less, and its folder was nobody's.
  const std::size_t digits = choose_temporary_folder("").size();
  for (int i = 0; i < 1000; ++i) REQUIRE(choose_temporary_folder("").size() == digits);
}

TEST_CASE("a folder that nobody holds is removed, with a store or without", "[folder]") {
  // Was: kill -9 of a program and its children at once left its folder for ever.
  const test::TempFolder base;
  const std::string left = make_folder(base.path()), empty = choose_temporary_folder(base.path());
  fs::create_directory(empty);
  remove_abandoned_folders(base.path());
  CHECK(fs::exists(left));  // its program may be starting
  CHECK(is_removed(base.path(), {left, empty}));
}

TEST_CASE("a folder whose program or head lives stays, and so does what has another name", "[folder]") {
  const test::TempFolder base;
  const std::string of_program = make_folder(base.path()), of_head = make_folder(base.path());
  auto held = hold_temporary_folder(of_program).value();  // its head is being started again
  auto served = open_sqlite_storage(of_head).value();
  for (const char* name : {"troupe-serve", "troupe-0123456789abcdeg", "other"})
    fs::create_directory(base.path() + "/" + name);
  fs::create_directory_symlink(of_head, base.path() + "/troupe-0123456789abcdef");
  remove_abandoned_folders(base.path(), kAnyAge);
  for (const char* name : {"troupe-serve", "troupe-0123456789abcdeg", "other", "troupe-0123456789abcdef"})
    CHECK(fs::exists(base.path() + "/" + name));
  CHECK(fs::exists(of_program));
  CHECK(fs::exists(of_head));
  held.reset();
  served.reset();
  CHECK(is_removed(base.path(), {of_program, of_head}));
}

// Was: two nodes of a program that was killed could kill each other, and nobody killed the rest.
TEST_CASE("who has taken off its cluster's mark is not killed with the others", "[folder]") {
  const test::TempFolder base;
  const std::string mark = mark_of_cluster(choose_temporary_folder(base.path()));
  std::vector<Child> children;
  for (const char* role : {"takes off its mark", "stays"}) {
    children.push_back(start_child({.role = role, .environment = {mark}}).value());
    REQUIRE(receive_control(children.back().link, 30s));
  }
  node::kill_marked({mark});
  REQUIRE(wait_ended(children[1], 30s));
  CHECK(reap(children[1]) == "killed by signal 9 (SIGKILL)");
  CHECK(send_control(children[0].link, {}, wire::AdmitAsk{7, NodeId{1}, "key"}));
  CHECK(receive_control(children[0].link, 30s));  // it answers: it lives
  end_child(children[0], Duration(0));
}

TEST_CASE("what is left of a program that was killed is ended with its folder, though it is stopped",
          "[folder]") {
  // Was: a head that was stopped as its program was killed stayed for good, and its folder with it.
  const test::TempFolder base;
  const std::string folder = make_folder(base.path()), other = make_folder(base.path());
  std::vector<Child> heads;
  for (const auto& one : {folder, other}) {
    heads.push_back(start_child({.role = "serves " + one, .environment = {mark_of_cluster(one)}}).value());
    REQUIRE(receive_control(heads.back().link, 30s));
  }
  signal_child(heads[0], SIGSTOP);
  const auto held = hold_temporary_folder(other).value();  // that one's program lives
  CHECK(is_removed(base.path(), {folder}));
  REQUIRE(wait_ended(heads[0], 30s));
  CHECK(reap(heads[0]) == "killed by signal 9 (SIGKILL)");
  CHECK(fs::exists(other));
  CHECK(send_control(heads[1].link, {}, wire::AdmitAsk{7, NodeId{1}, "key"}));
  CHECK(receive_control(heads[1].link, 30s));  // it answers: it lives
  end_child(heads[1], Duration(0));
}

TEST_CASE("a folder that is not there is not held", "[folder]") {
  const test::TempFolder base;
  CHECK(hold_temporary_folder(choose_temporary_folder(base.path())).error().code == ErrorCode::kIo);
}
