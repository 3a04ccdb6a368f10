#include "actors/checkpoint/folder_lock.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/files.hpp"

namespace troupe::checkpoint::testing {

using test::TempFolder;

// Two runs that began in one empty folder each took the other's checkpoints for its own.
TEST_CASE("a folder that a run has is refused to another one, with both named, until it ends") {
  const TempFolder folder;
  {
    const auto first = FolderLock::take(folder.path(), "run-1, pid 7 on host a");
    REQUIRE(first.ok());
    CHECK(first->is_held());
    const auto second = FolderLock::take(folder.path(), "run-2, pid 8 on host a");
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().code == ErrorCode::kRefused);
    CHECK(second.error().why ==
          "run-1, pid 7 on host a keeps its checkpoints there; this is run-2, pid 8 on host a");
  }
  CHECK(FolderLock::take(folder.path(), "run-2").ok());
}

// A folder that was removed in use was made again without its lock, and a second run pruned what the first
// needed.
TEST_CASE("a folder that was removed is locked again, unless another run was faster") {
  const TempFolder outer;
  const std::string folder = outer.path() + "/checkpoints";
  std::filesystem::create_directory(folder);
  auto mine = FolderLock::take(folder, "run-1").value();
  CHECK_FALSE(mine.renew().value());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  CHECK(mine.renew().value());
  CHECK_FALSE(FolderLock::take(folder, "run-2").ok());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const auto other = FolderLock::take(folder, "run-2").value();
  CHECK(mine.renew().error().code == ErrorCode::kRefused);
}

TEST_CASE("a program that is killed lets go of its folder") {
  const TempFolder folder;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = FolderLock::take(folder.path(), "the child");
    static_cast<void>(::write(ready[1], "x", 1));
    ::pause();
    ::_exit(lock.ok() ? 0 : 1);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK_FALSE(FolderLock::take(folder.path(), "the parent").ok());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(FolderLock::take(folder.path(), "the parent").ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a folder that is not there is an error that names the file") {
  CHECK(FolderLock::take("/no/such/folder", "run-1").error().what ==
        "cannot open '/no/such/folder/checkpoints.lock'");
}

}  // namespace troupe::checkpoint::testing
