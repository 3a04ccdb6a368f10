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

}  // namespace

TEST_CASE("the last N are kept and the newest loads") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c", 2});
  REQUIRE(store.prepare().ok());
  CHECK(disk.names().empty());
  // Steps need not grow: a job that starts afresh in an old folder is the newest all the same.
  for (const std::uint64_t step : {10U, 90U, 20U}) CHECK(save(store, step).warnings.empty());
  CHECK(disk.names() ==
        std::vector<std::string>{"checkpoint-00000002.json", "checkpoint-00000002.safetensors",
                                 "checkpoint-00000003.json", "checkpoint-00000003.safetensors"});
  const auto loaded = store.load_latest();
  REQUIRE(loaded.ok());
  CHECK(check_whole(*loaded) == 20);
  CHECK(loaded->manifest_path == "/c/checkpoint-00000003.json");
  CHECK(loaded->warnings.empty());
}

TEST_CASE("other files in the folder are left alone") {
  SimulatedDisk disk(1);
  for (const char* name : {"/c/notes.txt", "/c/checkpoint-1.safetensors", "/c/checkpoint-00000001.bak",
                           "/c/checkpoint-99999999999999999999.json"}) {
    REQUIRE(disk.create(name).ok());
  }
  CheckpointStore store(disk, {"/c", 1});
  for (std::uint64_t step = 1; step <= 3; ++step) save(store, step);
  CHECK(disk.names().size() == 4 + 2);
  CHECK(check_whole(*store.load_latest()) == 3);
}

TEST_CASE("any flipped byte is found, and the previous checkpoint is used") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c", 2});
  save(store, 1);
  save(store, 2);
  for (const std::string name : {"checkpoint-00000002.json", "checkpoint-00000002.safetensors"}) {
    auto& bytes = disk.bytes_of("/c/" + name);
    REQUIRE(bytes.size() > 100);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (const int flip : {0x01, 0x20, 0x80, 0xff}) {
        CAPTURE(name, at, flip);
        bytes[at] ^= std::byte(flip);
        const auto loaded = store.load_latest();
        bytes[at] ^= std::byte(flip);
        REQUIRE(loaded.ok());
        CHECK(check_whole(*loaded) == 1);
        REQUIRE(loaded->warnings.size() == 1);
        CHECK_THAT(loaded->warnings[0], Catch::StartsWith("passed over checkpoint 2: cannot use ") &&
                                            Catch::Contains("/c/" + name));
      }
    }
    for (const std::ptrdiff_t change : {-1, 1}) {
      const auto whole = bytes;
      bytes.resize(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(bytes.size()) + change));
      CHECK(check_whole(*store.load_latest()) == 1);
      bytes = whole;
    }
  }
  CHECK(check_whole(*store.load_latest()) == 2);
}

TEST_CASE("with nothing whole there is an error that lists the reasons") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c", 2});
  const auto none = store.load_latest();
  CHECK(none.error().code == ErrorCode::kUnavailable);
  CHECK(none.error().message() ==
        "there is no checkpoint to resume from: '/c' holds none (start without --resume, or name another "
        "folder)");
  save(store, 1);
  save(store, 2);
  disk.bytes_of("/c/checkpoint-00000002.safetensors")[40] ^= std::byte{1};
  REQUIRE(disk.remove("/c/checkpoint-00000001.safetensors").ok());
  const auto bad = store.load_latest();
  REQUIRE_FALSE(bad.ok());
  CHECK(bad.error().code == ErrorCode::kCorrupt);
  CHECK(bad.error().why ==
        "passed over checkpoint 2: cannot use '/c/checkpoint-00000002.safetensors': its SHA-256 is not the "
        "manifest's; passed over checkpoint 1: cannot open '/c/checkpoint-00000001.safetensors': No such "
        "file or "
        "directory");
}

TEST_CASE("a manifest cannot vouch for another file") {
  SimulatedDisk disk(1);
  CheckpointStore store(disk, {"/c", 2});
  save(store, 1);
  save(store, 2);
  for (const std::string name :
       {"../c/checkpoint-00000002.safetensors", "/etc/passwd", "checkpoint-00000001.safetensors"}) {
    const SampleState state(2);
    const Manifest forged{
        state.request.job, state.request.state_hash, {name, 1, state.request.state_hash}, {}};
    const auto text = encode_manifest(forged);
    REQUIRE(text.ok());
    const auto bytes = std::as_bytes(std::span(*text));
    disk.bytes_of("/c/checkpoint-00000002.json").assign(bytes.begin(), bytes.end());
    const auto loaded = store.load_latest();
    REQUIRE(loaded.ok());
    CHECK(check_whole(*loaded) == 1);
    CHECK_THAT(loaded->warnings.at(0), Catch::Contains("it belongs to another file"));
  }
}

TEST_CASE("a store that cannot work is refused") {
  SimulatedDisk disk(1);
  CHECK_THROWS_AS(CheckpointStore(disk, {"", 1}), BadConfig);
  CHECK_THROWS_AS(CheckpointStore(disk, {"/c", 0}), BadConfig);
  CheckpointStore store(disk, {"/c", 1});
  SampleState state(1);
  state.request.state_hash = "abc";
  CHECK(store.save(state.request).error().why.starts_with("cannot write a checkpoint's manifest"));
  state.request.tensors[0].shape = {7};
  CHECK(store.save(state.request).error().message() ==
        "cannot write tensor 'conv1.weight': its shape takes 28 bytes, it has 24");
  CHECK(disk.names().empty());
}
