#include "actors/checkpoint/file_system.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/actors/checkpoint/sample_state.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::testing;
using troupe::test::TempFolder;

TEST_CASE("a store on the real disk saves, prunes and loads") {
  const TempFolder folder;
  PosixFileSystem files;
  CheckpointStore store(files, {folder.path() + "/deep/er"});
  REQUIRE(store.prepare().ok());
  for (std::uint64_t step = 1; step <= 4; ++step) {
    const SampleState state(step);
    REQUIRE(store.save(state.request).ok());
  }
  REQUIRE(keep_last(store, 2).ok());
  CHECK(files.list(folder.path() + "/deep/er")->size() == 4);
  auto loaded = load_newest(store);
  REQUIRE(loaded.ok());
  const LoadedCheckpoint moved = std::move(loaded.whole).value();
  CHECK(check_whole(moved) == 4);
}

TEST_CASE("a state that is not at hand as a whole is asked for part by part, in the order of its file") {
  const TempFolder folder;
  PosixFileSystem files;
  CheckpointStore store(files, {folder.path()});
  SampleState state(7);
  const auto whole = state.request.tensors;
  std::vector<std::string> asked;
  for (auto& tensor : state.request.tensors)
    tensor.bytes = {static_cast<const std::byte*>(nullptr), tensor.bytes.size()};
  state.request.bytes_of = [&](const TensorView& tensor) {
    asked.push_back(tensor.name);
    return tensor.name == whole[0].name ? whole[0].bytes : whole[1].bytes;
  };
  REQUIRE(store.save(state.request).ok());
  CHECK(asked == std::vector<std::string>{"bn.num_batches_tracked", "conv1.weight"});
  const auto loaded = load_newest(store);
  REQUIRE(loaded.ok());
  CHECK(check_whole(*loaded) == 7);
}

TEST_CASE("a file is mapped as it is read") {
  const TempFolder folder;
  PosixFileSystem files;
  const std::string path = folder.path() + "/file";
  auto created = files.create(path);
  REQUIRE(created.ok());
  const auto file = *std::move(created);
  CHECK(files.map(path, 100)->bytes.empty());
  const std::vector<std::byte> bytes(10, std::byte{7});
  REQUIRE(file->append(bytes).ok());
  const auto mapped = files.map(path, 10);
  REQUIRE(mapped.ok());
  CHECK(std::equal(bytes.begin(), bytes.end(), mapped->bytes.begin(), mapped->bytes.end()));
  CHECK(files.map(path, 9).error().code == ErrorCode::kLimit);
  CHECK(files.map(folder.path(), 9).error().code == ErrorCode::kIo);
}

TEST_CASE("a symbolic link out of the folder is not followed") {
  const TempFolder folder;
  PosixFileSystem files;
  CheckpointStore store(files, {folder.path() + "/c"});
  for (std::uint64_t step = 1; step <= 2; ++step) {
    const SampleState state(step);
    REQUIRE(store.save(state.request).ok());
  }
  const std::string inside = folder.path() + "/c/checkpoint-00000002.safetensors";
  std::filesystem::rename(inside, folder.path() + "/outside");
  std::filesystem::create_symlink(folder.path() + "/outside", inside);
  const auto loaded = load_newest(store);
  REQUIRE(loaded.ok());
  CHECK(check_whole(*loaded) == 1);
  CHECK(loaded.passed_over.size() == 1);
}

TEST_CASE("folders that cannot be used say which and why") {
  const TempFolder folder;
  PosixFileSystem files;
  REQUIRE(files.create(folder.path() + "/file").ok());
  CheckpointStore on_a_file(files, {folder.path() + "/file"});
  CHECK_THAT(on_a_file.prepare().error().message(),
             Catch::StartsWith("cannot save a checkpoint in '" + folder.path() + "/file': ") &&
                 Catch::Contains("Not a directory"));
  CHECK(CheckpointStore(files, {folder.path() + "/none"}).list().error().message() ==
        "cannot look for checkpoints: cannot list '" + folder.path() +
            "/none': No such file or directory (check the checkpoint folder)");
  if (::geteuid() == 0) {
    WARN("skipped: root may write everywhere, so an unwritable folder is not shown");
    return;
  }
  REQUIRE(::chmod(folder.path().c_str(), 0500) == 0);
  CheckpointStore locked(files, {folder.path()});
  CHECK_THAT(locked.prepare().error().message(), Catch::Contains("Permission denied"));
  REQUIRE(::chmod(folder.path().c_str(), 0700) == 0);
}

TEST_CASE("a file that cannot grow is an error, and nothing of it stays") {
  const TempFolder folder;
  PosixFileSystem files;
  CheckpointStore store(files, {folder.path()});
  const SampleState state(1);
  REQUIRE(store.save(state.request).ok());
  // A limit on file sizes stands for a full disk: the write that reaches it is short, the next one fails.
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100, old.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto saved = store.save(state.request);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  std::signal(SIGXFSZ, old_handler);
  REQUIRE_FALSE(saved.ok());
  CHECK_THAT(saved.error().message(),
             Catch::StartsWith("cannot save a checkpoint in '" + folder.path() + "': cannot write '") &&
                 Catch::Contains("File too large; before the save ") && Catch::Contains(" MiB free, ") &&
                 // There is room enough: to free some, as it said, was of no use.
                 Catch::Contains("(check the disk and its permissions, or name another folder"));
  CHECK(files.list(folder.path())->size() == 2);
  CHECK(check_whole(*load_newest(store)) == 1);
}

TEST_CASE("names that are taken and files that are too large are refused") {
  const TempFolder folder;
  PosixFileSystem files;
  const std::string path = folder.path() + "/file";
  REQUIRE((*files.create(path))->append(std::vector<std::byte>(11)).ok());
  CHECK(files.create(path).error().why == "File exists");
  CHECK(files.read(path, 11)->size() == 11);
  CHECK(files.read(path, 10).error().code == ErrorCode::kLimit);
  CHECK(files.read(folder.path(), 10).error().code == ErrorCode::kIo);
}
