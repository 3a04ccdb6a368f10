#include "actors/checkpoint/checkpoint_store.hpp"

#include <set>

#include "tests/actors/checkpoint/sample_state.hpp"
#include "tests/actors/checkpoint/simulated_disk.hpp"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::testing;

namespace {

SavedCheckpoint save(CheckpointStore& store, std::uint64_t step) {
  const SampleState state(step);
  auto saved = store.save(state.request);
  REQUIRE(saved.ok());
  return *std::move(saved);
}

/// A disk on which something happens behind a look at the folder.
struct Late final : FileSystem {
  Late(FileSystem& on, std::function<void()> then) : disk(on), listed(std::move(then)) {}
  Result<void> make_folder(const std::string& folder) override { return disk.make_folder(folder); }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    auto names = disk.list(folder);
    listed();
    return names;
  }
  Result<std::unique_ptr<OutputFile>> create(const std::string& path) override { return disk.create(path); }
  Result<std::vector<std::byte>> read(const std::string& path, std::size_t most) override {
    return disk.read(path, most);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    return disk.rename(from, to);
  }
  Result<void> remove(const std::string& path) override { return disk.remove(path); }
  Result<void> sync_folder(const std::string& folder) override { return disk.sync_folder(folder); }
  std::optional<std::uint64_t> free_bytes(const std::string& folder) override {
    return disk.free_bytes(folder);
  }
  FileSystem& disk;
  std::function<void()> listed;
};

}  // namespace

// A trainer that hung between its look and its first write, and went on when another had saved in its place,
// put an older state under a number that the job had accepted.
TEST_CASE("a writer that is late replaces no checkpoint of another, and takes none away") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c"});
  Late late(disk, [&] { save(store, 2); });
  const SampleState older(1);
  CHECK(CheckpointStore(late, {"/c"}).save(older.request).error().code == ErrorCode::kIo);
  CHECK(disk.names() ==
        std::vector<std::string>{"checkpoint-00000001.json", "checkpoint-00000001.safetensors"});
  CHECK(check_whole(*load_newest(store)) == 2);

  // Its temporary file, too, is another's while that writes.
  Late later(disk, [&] { REQUIRE(disk.create("/c/checkpoint-00000002.safetensors.tmp").ok()); });
  CHECK_FALSE(CheckpointStore(later, {"/c"}).save(older.request).ok());
  CHECK(disk.names().size() == 3);
}

TEST_CASE("what is older than the one that is kept goes, and the newest loads") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c"});
  REQUIRE(store.prepare().ok());
  CHECK(disk.names().empty());
  // Steps need not grow: a job that starts afresh in an old folder is the newest all the same.
  for (const std::uint64_t step : {10U, 90U, 20U}) save(store, step);
  CHECK(disk.names().size() == 6);  // a save deletes nothing
  REQUIRE(store.prune("/c/checkpoint-00000002.json").ok());
  CHECK(disk.names() ==
        std::vector<std::string>{"checkpoint-00000002.json", "checkpoint-00000002.safetensors",
                                 "checkpoint-00000003.json", "checkpoint-00000003.safetensors"});
  const auto loaded = load_newest(store);
  REQUIRE(loaded.ok());
  CHECK(check_whole(*loaded) == 20);
  CHECK(loaded->manifest_path == "/c/checkpoint-00000003.json");
  CHECK(loaded.passed_over.empty());
}

TEST_CASE("the best one is spared, however old it is") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c"});
  for (std::uint64_t step = 1; step <= 4; ++step) save(store, step);
  REQUIRE(store.prune("/c/checkpoint-00000004.json", "/c/checkpoint-00000002.json").ok());
  CHECK(disk.names() ==
        std::vector<std::string>{"checkpoint-00000002.json", "checkpoint-00000002.safetensors",
                                 "checkpoint-00000004.json", "checkpoint-00000004.safetensors"});
  CHECK(store.load_manifest("/c/checkpoint-00000002.json").ok());
  CHECK(store.prune("/c/checkpoint-00000004.json", "a snapshot").error().code == ErrorCode::kRefused);
}

TEST_CASE("a checkpoint that is discarded is no more, and the one before it is the newest") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c"});
  save(store, 1);
  save(store, 2);
  REQUIRE(store.discard("/c/checkpoint-00000002.json").ok());
  CHECK(disk.names() ==
        std::vector<std::string>{"checkpoint-00000001.json", "checkpoint-00000001.safetensors"});
  CHECK(store.discard("/etc/checkpoint-00000001.json").error().code == ErrorCode::kRefused);
}

// Only tensors of more than 16 MiB were counted: a trainer that wrote for two minutes was taken for hanging.
TEST_CASE("a save tells that it goes on about every 16 MiB, also of many small tensors") {
  SimulatedDisk disk(1);
  int told = 0;
  CheckpointStore store(disk, {"/c", [&] { ++told; }});
  const SampleState state(1);
  SaveRequest request = state.request;
  const std::vector<std::byte> mebibyte(std::size_t{1} << 20);
  request.tensors.clear();
  for (int i = 0; i < 40; ++i)
    request.tensors.push_back({"t" + std::to_string(i), DType::kU8, {1 << 20}, mebibyte});
  int told_while_writing = 0;
  request.bytes_of = [&](const TensorView& tensor) {
    told_while_writing = told;
    return tensor.bytes;
  };
  REQUIRE(store.save(request).ok());
  CHECK(told_while_writing == 2);
}

TEST_CASE("other files in the folder are left alone") {
  SimulatedDisk disk(1);
  for (const char* name : {"/c/notes.txt", "/c/checkpoint-1.safetensors", "/c/checkpoint-00000001.bak",
                           "/c/checkpoint-99999999999999999999.json"}) {
    REQUIRE(disk.create(name).ok());
  }
  CheckpointStore store(disk, {"/c"});
  for (std::uint64_t step = 1; step <= 3; ++step) save(store, step);
  REQUIRE(keep_last(store, 1).ok());
  CHECK(disk.names().size() == 4 + 2);
  CHECK(store.prune("/etc/checkpoint-00000009.json").error().code == ErrorCode::kRefused);
  CHECK(check_whole(*load_newest(store)) == 3);
}

TEST_CASE("any flipped byte is found, and the previous checkpoint is used") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c"});
  save(store, 1);
  save(store, 2);
  for (const std::string name : {"checkpoint-00000002.json", "checkpoint-00000002.safetensors"}) {
    auto& bytes = disk.bytes_of("/c/" + name);
    REQUIRE(bytes.size() > 100);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (const int flip : {0x01, 0x20, 0x80, 0xff}) {
        CAPTURE(name, at, flip);
        bytes[at] ^= std::byte(flip);
        const auto loaded = load_newest(store);
        bytes[at] ^= std::byte(flip);
        REQUIRE(loaded.ok());
        CHECK(check_whole(*loaded) == 1);
        REQUIRE(loaded.passed_over.size() == 1);
        CHECK_THAT(loaded.passed_over[0], Catch::StartsWith("cannot use ") && Catch::Contains("/c/" + name));
      }
    }
    for (const std::ptrdiff_t change : {-1, 1}) {
      const auto whole = bytes;
      bytes.resize(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(bytes.size()) + change));
      CHECK(check_whole(*load_newest(store)) == 1);
      bytes = whole;
    }
  }
  CHECK(check_whole(*load_newest(store)) == 2);
}

TEST_CASE("the list has every manifest, oldest first, and says what is wrong with one that does not decode") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c"});
  CHECK(store.list()->empty());
  for (const std::uint64_t step : {3U, 1U, 2U}) save(store, step);
  disk.bytes_of("/c/checkpoint-00000002.json")[40] ^= std::byte{1};
  REQUIRE(disk.remove("/c/checkpoint-00000003.safetensors").ok());  // found by who loads it
  const auto listed = store.list();
  REQUIRE(listed->size() == 3);
  CHECK((*listed)[0].manifest->position.global_step == 3);
  CHECK_THAT((*listed)[1].manifest.error().message(),
             Catch::StartsWith("cannot use manifest '/c/checkpoint-00000002.json'"));
  CHECK((*listed)[2].manifest->position.global_step == 2);
  CHECK(store.load_manifest("/c/checkpoint-00000003.json").error().message() ==
        "cannot open '/c/checkpoint-00000003.safetensors': No such file or directory");
}

TEST_CASE(
    "a disk that does not keep what was written is found by reading it back, and nothing older is lost") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c"});
  save(store, 1);
  disk.damage_next_file();
  const SampleState state(2);
  const auto saved = store.save(state.request);
  REQUIRE_FALSE(saved.ok());
  CHECK_THAT(saved.error().why, Catch::Contains("its SHA-256 is not the manifest's"));
  CHECK(check_whole(*load_newest(store)) == 1);
  CHECK(disk.names().size() == 2);
}

TEST_CASE("a save that is given up on its way leaves nothing") {
  // A trainer that a new generation calls away gives up its walk over the state, wherever it is.
  const std::vector<std::byte> large(std::size_t{65} << 20);  // pieces are of 16 MiB
  SampleState state(1);
  state.request.tensors.push_back({"table", DType::kU8, {static_cast<std::int64_t>(large.size())}, large});
  SimulatedDisk disk(1);
  int given_up = 0;
  for (bool saved = false; !saved; ++given_up) {
    CAPTURE(given_up);
    int calls = 0;
    CheckpointStore store(disk, {"/c", [&] {
                                   if (calls++ == given_up)
                                     throw CollectiveAborted({ErrorCode::kAborted, "over", "", ""});
                                 }});
    try {
      saved = store.save(state.request).ok();
      REQUIRE(saved);
    } catch (const CollectiveAborted&) {
      CHECK(disk.names().empty());
    }
  }
  CHECK(given_up > 5);
  CHECK(disk.names().size() == 2);
}

TEST_CASE("a manifest cannot vouch for another file") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c"});
  save(store, 1);
  save(store, 2);
  for (const std::string name :
       {"../c/checkpoint-00000002.safetensors", "/etc/passwd", "checkpoint-00000001.safetensors"}) {
    const SampleState state(2);
    const Manifest forged{state.request.job,
                          state.request.position,
                          state.request.state_hash,
                          {name, 1, state.request.state_hash},
                          {}};
    const auto text = encode_manifest(forged);
    REQUIRE(text.ok());
    const auto bytes = std::as_bytes(std::span(*text));
    disk.bytes_of("/c/checkpoint-00000002.json").assign(bytes.begin(), bytes.end());
    const auto loaded = load_newest(store);
    REQUIRE(loaded.ok());
    CHECK(check_whole(*loaded) == 1);
    CHECK_THAT(loaded.passed_over.at(0), Catch::Contains("it belongs to another file"));
  }
}

TEST_CASE("a store that cannot work is refused") {
  SimulatedDisk disk(1);
  CHECK_THROWS_AS(CheckpointStore(disk, {""}), BadConfig);
  CheckpointStore store(disk, {"/c"});
  SampleState state(1);
  state.request.state_hash = "abc";
  CHECK(store.save(state.request).error().why.starts_with("cannot write a checkpoint's manifest"));
  state.request.tensors[0].shape = {7};
  CHECK(store.save(state.request).error().message() ==
        "cannot write tensor 'conv1.weight': its shape takes 28 bytes, it has 24");
  CHECK(disk.names().empty());
}
