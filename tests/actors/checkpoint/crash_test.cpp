/// The disk loses power, or fails, at every single operation of a save: what loads afterwards is the old
/// checkpoint or the new one, never a mix, and the next save works.
#include <algorithm>
#include <set>

#include "tests/actors/checkpoint/sample_state.hpp"
#include "tests/actors/checkpoint/simulated_disk.hpp"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::testing;

namespace {

constexpr int kKeep = 2;

void save(SimulatedDisk& disk, std::uint64_t step) {
  CheckpointStore store(disk, {"/c"});
  const SampleState state(step);
  REQUIRE(store.save(state.request).ok());
  REQUIRE(keep_last(store, kKeep).ok());
}

Newest newest_of(SimulatedDisk& disk) {
  CheckpointStore store(disk, {"/c"});
  return load_newest(store);
}

/// Every manifest has its tensors beside it: damage is never the store's own doing.
bool manifests_are_whole(const SimulatedDisk& disk) {
  const auto names = disk.names();
  return std::all_of(names.begin(), names.end(), [&names](const std::string& name) {
    if (!name.ends_with(".json")) return true;
    return std::count(names.begin(), names.end(), name.substr(0, name.size() - 5) + ".safetensors") == 1;
  });
}

/// How many operations a save takes once there are more checkpoints than are kept.
int operations_of_a_save() {
  SimulatedDisk disk(1);
  for (std::uint64_t step = 1; step <= 3; ++step) save(disk, step);
  const int before = disk.operations();
  save(disk, 4);
  return disk.operations() - before;
}

}  // namespace

TEST_CASE("power lost at any operation leaves the old checkpoint or the new one") {
  const int operations = operations_of_a_save();
  REQUIRE(operations > 10);
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto leftovers = seed <= 3 ? static_cast<Leftovers>(seed - 1) : Leftovers::kRandom;
    for (int at = 0; at < operations; ++at) {
      for (const auto trouble : {Trouble::kPowerLossBefore, Trouble::kPowerLossAfter}) {
        CAPTURE(seed, at, static_cast<int>(trouble), static_cast<int>(leftovers));
        SimulatedDisk disk(seed);
        for (std::uint64_t step = 1; step <= 3; ++step) save(disk, step);
        disk.plan(disk.operations() + at, trouble);
        CheckpointStore store(disk, {"/c"});
        const SampleState state(4);
        const auto save_and_prune = [&] {
          if (store.save(state.request).ok()) static_cast<void>(keep_last(store, kKeep));
        };
        REQUIRE_THROWS_AS(save_and_prune(), PowerLoss);
        disk.reboot(leftovers);
        CHECK(manifests_are_whole(disk));

        auto loaded = newest_of(disk);
        REQUIRE(loaded.ok());
        CHECK(loaded.passed_over.empty());
        const auto step = check_whole(*loaded);
        CHECK((step == 3 || step == 4));
        seen.insert(step);

        save(disk, 5);
        loaded = newest_of(disk);
        REQUIRE(loaded.ok());
        CHECK(check_whole(*loaded) == 5);
        // What the crash left goes with the checkpoints that are as old.
        save(disk, 6);
        CHECK(disk.names().size() == std::size_t{2} * kKeep);
      }
    }
  }
  CHECK(seen.size() == 2);
}

TEST_CASE("once a save has returned, no crash takes it back") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    SimulatedDisk disk(seed);
    for (std::uint64_t step = 1; step <= 4; ++step) save(disk, step);
    disk.reboot(seed <= 3 ? static_cast<Leftovers>(seed - 1) : Leftovers::kRandom);
    const auto loaded = newest_of(disk);
    REQUIRE(loaded.ok());
    CHECK(check_whole(*loaded) == 4);
  }
}

TEST_CASE("a failed operation is an error with path and free space, and older checkpoints stay") {
  const int operations = operations_of_a_save();
  int refused = 0;
  for (int at = 0; at < operations; ++at) {
    CAPTURE(at);
    SimulatedDisk disk(1);
    for (std::uint64_t step = 1; step <= 3; ++step) save(disk, step);
    disk.plan(disk.operations() + at, Trouble::kError);
    CheckpointStore store(disk, {"/c"});
    const SampleState state(4);
    const auto saved = store.save(state.request);
    const auto pruned = saved ? keep_last(store, kKeep) : Result<void>();
    if (!saved) {
      ++refused;
      CHECK_THAT(saved.error().message(),
                 Catch::StartsWith("cannot save a checkpoint in '/c': cannot write '/c"));
      CHECK_THAT(saved.error().why, Catch::Contains("1.5 MiB free"));
    } else {
      CHECK_FALSE(pruned.ok());
    }
    auto loaded = load_newest(store);
    REQUIRE(loaded.ok());
    CHECK(loaded.passed_over.empty());
    const auto step = check_whole(*loaded);
    CHECK((saved.ok() ? step == 4 : step >= 3));

    save(disk, 5);
    CHECK(check_whole(*load_newest(store)) == 5);
    save(disk, 6);
    CHECK(disk.names().size() == std::size_t{2} * kKeep);
  }
  CHECK(refused >= 8);
}

TEST_CASE("a full disk is not left fuller") {
  SimulatedDisk disk(1);
  save(disk, 1);
  const auto before = disk.names();
  for (int at = 0; at < 9; ++at) {
    CAPTURE(at);
    disk.plan(disk.operations() + at, Trouble::kError);
    CheckpointStore store(disk, {"/c"});
    const SampleState state(2);
    REQUIRE_FALSE(store.save(state.request).ok());
    CHECK(disk.names() == before);
  }
}
