#include "actors/checkpoint/file_system.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

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

TEST_CASE("a name that is taken is not given to another file") {
  const TempFolder folder;
  PosixFileSystem files;
  const std::string one = folder.path() + "/one", two = folder.path() + "/two";
  for (const auto& [path, byte] : {std::pair(one, 1), std::pair(two, 2)})
    REQUIRE((*files.create(path))->append(std::vector{std::byte(byte)}).ok());
  CHECK_FALSE(files.rename(one, two).ok());
  CHECK((files.read(one, 1).value() == std::vector{std::byte{1}}));
  CHECK((files.read(two, 1).value() == std::vector{std::byte{2}}));
  REQUIRE(files.rename(one, folder.path() + "/three").ok());
  CHECK(files.list(folder.path())->size() == 2);
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

TEST_CASE("a file is read in pieces, and one that is cut short meanwhile is an error") {
  const TempFolder folder;
  PosixFileSystem files;
  const std::string path = folder.path() + "/file";
  auto created = files.create(path);
  REQUIRE(created.ok());
  const auto file = *std::move(created);
  CHECK((*files.open(path, 100))->size() == 0);
  std::vector<std::byte> bytes;
  for (int i = 0; i < 10; ++i) bytes.push_back(std::byte(i));
  REQUIRE(file->append(bytes).ok());
  const auto opened = files.open(path, 10);
  REQUIRE(opened.ok());
  InputFile& input = **opened;
  CHECK(input.size() == 10);
  std::vector<std::byte> all(10), some(3);
  CHECK(input.read(0, all).ok());
  CHECK(all == bytes);
  CHECK(input.read(6, some).ok());
  CHECK(some == std::vector{std::byte{6}, std::byte{7}, std::byte{8}});
  std::filesystem::resize_file(path, 5);
  CHECK(input.read(2, some).ok());
  CHECK(input.read(0, all).error().message() ==
        "cannot read '" + path + "': it ends at byte 5 by now, it had 10");
  CHECK(files.open(path, 4).error().code == ErrorCode::kLimit);
  CHECK(files.open(folder.path(), 9).error().code == ErrorCode::kIo);
}

// It was mapped while it was read: SIGBUS killed the trainer, and no older one was tried.
TEST_CASE(
    "a checkpoint that is cut short or changed while it is read is an error, the one before it is used") {
  const TempFolder folder;
  const std::vector<std::byte> large(std::size_t{40} << 20, std::byte{3});  // read in pieces of 16 MiB
  PosixFileSystem plain;
  CheckpointStore writer(plain, {folder.path()});
  const SampleState older(1);
  REQUIRE(writer.save(older.request).ok());
  SampleState state(2);
  state.request.tensors.push_back({"table", DType::kU8, {static_cast<std::int64_t>(large.size())}, large});
  REQUIRE(writer.save(state.request).ok());
  const std::string manifest = folder.path() + "/checkpoint-00000002.json";
  const std::string tensors = folder.path() + "/checkpoint-00000002.safetensors";
  PosixFileSystem cutting([&] { std::filesystem::resize_file(tensors, 17 << 20); });
  CheckpointStore cut(cutting, {folder.path()});

  SECTION("as a whole") {
    const auto loaded = load_newest(cut);
    REQUIRE(loaded.ok());
    CHECK(check_whole(*loaded) == 1);
    REQUIRE(loaded.passed_over.size() == 1);
    CHECK_THAT(loaded.passed_over[0], Catch::Contains("it ends at byte 17825792 by now"));
  }
  SECTION("while it is checked") {
    CHECK_THAT(cut.open_manifest(manifest).error().message(), Catch::Contains("it ends at byte 17825792"));
  }
  SECTION("later") {
    auto opened = writer.open_manifest(manifest);
    REQUIRE(opened.ok());
    REQUIRE(opened->tensors().size() == 3);
    CHECK(opened->manifest().position.global_step == 2);
    for (const TensorView& want : state.request.tensors) {
      const auto bytes = opened->bytes_of(want);
      REQUIRE(bytes.ok());
      CHECK(std::equal(bytes->begin(), bytes->end(), want.bytes.begin(), want.bytes.end()));
    }
    const TensorView& table = state.request.tensors.back();
    const std::vector<char> other(8, 4);
    const auto size = static_cast<std::streamoff>(std::filesystem::file_size(tensors));
    std::fstream(tensors, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(size - 8)
        .write(other.data(), 8);
    CHECK(opened->bytes_of(table).error().code == ErrorCode::kCorrupt);
    std::filesystem::resize_file(tensors, 17 << 20);
    CHECK(opened->bytes_of(table).error().code == ErrorCode::kIo);
    CHECK(opened->bytes_of(state.request.tensors.front()).ok());
  }
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
                 Catch::Contains("File too large: the limit on the length of a file (ulimit -f) is 100 "
                                 "bytes; before the save ") &&
                 Catch::Contains(" MiB free, ") &&
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
