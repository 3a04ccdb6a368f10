#include "actors/train/trainer/kept_copy.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>

#include "actors/ddp/freed_memory.hpp"
#include "actors/train/engine/forked_copy.hpp"
#include "actors/train/trainer/shard_copies.hpp"
#include "actors/train/trainer/state_walks.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

struct Weights {
  std::vector<float> values = std::vector<float>(300'000);
  std::vector<StatePart> parts;
  Weights() {
    std::iota(values.begin(), values.end(), 0.5F);
    parts = {{"weight",
              checkpoint::DType::kF32,
              {static_cast<std::int64_t>(values.size())},
              std::as_bytes(std::span(values))}};
  }
  std::unique_ptr<ForkedCopy> copy() const { return std::make_unique<ForkedCopy>(parts); }
  KeptState keep(KeptCopy& kept) const {
    return kept.take(
        [&](KeptState&) { return std::make_unique<StateStream>(Generation{}, SharedState{}, copy()); });
  }
};

/// Of the pages of a copy, how many its process has for itself. None: this kernel does not tell.
std::optional<int> pages_of_its_own(const StateMemory& copy) {
  constexpr std::uint64_t kPage = 4096, kPresent = std::uint64_t{1} << 63,
                          kExclusive = std::uint64_t{1} << 56;
  const UniqueFd map(
      ::open(("/proc/" + std::to_string(copy.pid) + "/pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  int own = 0;
  for (const auto& run : copy.runs) {
    for (std::uint64_t page = run.address / kPage; page < (run.address + run.bytes) / kPage; ++page) {
      std::uint64_t word = 0;
      const auto at = static_cast<off_t>(page * sizeof word);
      if (::pread(map.get(), &word, sizeof word, at) != sizeof word) return std::nullopt;
      own += (word & kPresent) != 0 && (word & kExclusive) != 0 ? 1 : 0;
    }
  }
  return own;
}

std::int64_t resident_mib() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * ::getpagesize() >> 20;
}

}  // namespace

TEST_CASE("a walk over a copy has the state's order, and its bytes of when it was copied") {
  Weights weights;
  const std::vector<std::int64_t> count{7};
  weights.parts.push_back({"a count", checkpoint::DType::kI64, {1}, std::as_bytes(std::span(count))});
  const auto copy = weights.copy();
  const std::vector<float> before = weights.values;
  std::fill(weights.values.begin(), weights.values.end(), 0.0F);
  CopyWalk walk(*copy);
  REQUIRE(walk.parts().size() == 2);
  CHECK(walk.parts()[0].name == "weight");
  CHECK(walk.parts()[1].name == "a count");
  const auto same = [](std::span<const std::byte> a, std::span<const std::byte> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  CHECK(same(walk.bytes(1), std::as_bytes(std::span(count))));
  CHECK(same(walk.bytes(0), std::as_bytes(std::span(before))));
}

// A clone on another node told its own number, which some other process of the donor's node had.
TEST_CASE("the memory of a copy is for one process of its own node, or for nobody") {
  const Weights weights;
  KeptCopy kept;
  const auto number = weights.keep(kept).number;
  CHECK(kept.place(number, ::getpid()).memory);
  for (const std::int32_t nobody : {0, -1}) {
    const KeptPlace place = kept.place(number, nobody);
    CHECK_FALSE(place.given_up);
    CHECK_FALSE(place.memory);
  }
}

// A trial's trainer kept it for as long as it lived: each page that its steps changed was there twice.
TEST_CASE("a copy of a state that nobody reads for two minutes is given up, one that is read is not") {
  const Weights weights;
  KeptCopy kept;
  const auto number = weights.keep(kept).number;
  const bool in_memory = GENERATE(false, true);
  const auto minute = [&] {
    for (int beat = 0; beat < 60; ++beat) kept.beat();
  };
  for (int minutes = 0; minutes < 5; ++minutes) {
    minute();
    if (in_memory) {
      CHECK_FALSE(kept.place(number, ::getpid()).given_up);
    } else {
      CHECK_FALSE(kept.read(number, 0).bytes.empty());
    }
  }
  for (int minutes = 0; minutes < 3; ++minutes) minute();
  CHECK_THROWS_AS(kept.read(number, 0), Unavailable);
  const KeptPlace place = kept.place(number, ::getpid());
  CHECK(place.given_up);
  CHECK_FALSE(place.memory);
}

TEST_CASE("a copy that somebody took whole is given up soon, and another clone may take it until then") {
  const Weights weights;
  KeptCopy kept;
  const auto before = weights.keep(kept).number;
  const auto number = weights.keep(kept).number;
  const auto seconds = [&](int beats) {
    for (int beat = 0; beat < beats; ++beat) kept.beat();
  };
  CHECK_THROWS_AS(kept.place(before, ::getpid()), Unavailable);  // not given up: the trainer went on
  kept.taken(before);
  seconds(2 * KeptCopy::kTakenBeats);
  CHECK_FALSE(kept.place(number, ::getpid()).given_up);
  kept.taken(number);
  seconds(KeptCopy::kTakenBeats - 1);
  CHECK_FALSE(kept.place(number, ::getpid()).given_up);
  seconds(KeptCopy::kTakenBeats - 1);
  CHECK_FALSE(kept.place(number, ::getpid()).given_up);
  seconds(KeptCopy::kTakenBeats + 1);
  CHECK(kept.place(number, ::getpid()).given_up);
  // The next one is kept as long as any.
  const auto next = weights.keep(kept).number;
  seconds(2 * KeptCopy::kTakenBeats);
  CHECK_FALSE(kept.place(next, ::getpid()).given_up);
}

TEST_CASE("a forked copy is read in its memory, as it was when it was made, and not once it is gone") {
  Weights weights;
  const auto before = checkpoint::write_safetensors(checkpoint::lay_out_safetensors(weights.parts).value());
  auto copy = weights.copy();
  std::fill(weights.values.begin(), weights.values.end(), 0.0F);
  const auto memory = copy->memory(::getpid());
  REQUIRE(memory);
  std::vector<std::byte> read(before.size());
  std::size_t came = 0;
  const auto count = [&](std::span<const std::byte> piece) { came += piece.size(); };
  if (!read_memory(*memory, read, count)) {
    WARN("this kernel lets no process read another's memory");
    return;
  }
  CHECK(came == before.size());
  CHECK(read == before);
  CHECK_FALSE(read_memory(*memory, std::span(read).first(read.size() - 1), count));
  copy->read(8, std::span(read).first(8));  // it answers both kinds of questions
  CHECK(std::memcmp(read.data(), before.data() + 8, 8) == 0);
  ::kill(memory->pid, SIGKILL);
  CHECK_FALSE(copy->memory(::getpid()));
  copy.reset();
  CHECK_FALSE(read_memory(*memory, read, count));
}

TEST_CASE("shards are kept for one checkpoint, whose writer reads them and lets go of them") {
  const Weights weights;
  KeptShards kept;
  const ShardsOf second{{1, 2}, 8}, first{{1, 2}, 4}, other_generation{{1, 3}, 8};
  CHECK_THROWS_AS(kept.read(second, 0, 8), Unavailable);
  kept.keep(first, weights.copy());
  kept.keep(second, weights.copy());
  const auto file = checkpoint::write_safetensors(checkpoint::lay_out_safetensors(weights.parts).value());
  const SharedPiece piece = kept.read(second, 100, 1000);
  REQUIRE(piece.bytes.size() == 1000);
  CHECK(std::memcmp(piece.bytes.data(), file.data() + 100, 1000) == 0);
  CHECK(kept.read(second, file.size() - 10, 1000).bytes.size() == 10);  // as many as there are
  CHECK(kept.read(second, file.size() + 10, 1000).bytes.empty());
  CHECK_THROWS_AS(kept.read(first, 0, 8), Unavailable);
  CHECK_THROWS_AS(kept.read(other_generation, 0, 8), Unavailable);
  kept.drop(first);  // late
  CHECK_FALSE(kept.read(second, 0, 8).bytes.empty());
  kept.drop(second);
  CHECK_THROWS_AS(kept.read(second, 0, 8), Unavailable);
}

TEST_CASE("a copy of shards has room where every page may change while a step takes what it ever took") {
  constexpr std::uint64_t kMib = std::uint64_t{1} << 20;
  const ProcessMemory own{.now = 100 * kMib, .most = 150 * kMib};
  CHECK(why_no_room(30 * kMib, 1, own, 80 * kMib).empty());
  CHECK_THAT(why_no_room(31 * kMib, 1, own, 80 * kMib),
             Catch::Contains("81 MiB more in each of 1 trainers") && Catch::Contains("have 80 MiB"));
  CHECK(why_no_room(30 * kMib, 4, own, 320 * kMib).empty());  // which all copy at the same time
  CHECK_FALSE(why_no_room(30 * kMib, 4, own, 319 * kMib).empty());
  CHECK(why_no_room(80 * kMib, 1, {.now = 150 * kMib, .most = 100 * kMib}, 80 * kMib).empty());
  CHECK(why_no_room(80 * kMib, 1, own, std::nullopt).empty());
  const ProcessMemory here = own_process_memory();
  CHECK(here.now > kMib);
  CHECK(here.most >= here.now);
}

// It was read by a call for which the kernel first made the copy's process pages of its own.
TEST_CASE("what is read of a forked copy's memory stays shared with the process that forked") {
  const Weights weights;
  const auto copy = weights.copy();
  const auto memory = copy->memory(::getpid());
  REQUIRE(memory);
  const auto before = pages_of_its_own(*memory);
  std::vector<std::byte> read(static_cast<std::size_t>(copy->size()));
  if (!before || !read_memory(*memory, read, [](std::span<const std::byte>) {})) {
    WARN("this kernel lets no process look at another's memory");
    return;
  }
  CHECK(pages_of_its_own(*memory) == before);
}

// What the steps before had freed was the copy's for as long as its file was written, while the steps beside
// it took as much again: a trainer's memory was there twice.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which have allocators of their own
TEST_CASE("memory that is free when a state is copied goes back, and is none of the copy's") {
  const pid_t child = ::fork();  // the allocator of this process stays as it is
  if (child == 0) {
    keep_freed_memory();
    std::vector<void*> activations;
    for (int i = 0; i < 64; ++i) {
      activations.push_back(std::malloc(std::size_t{1} << 20));
      std::memset(activations.back(), 1, std::size_t{1} << 20);
    }
    for (void* const piece : activations) std::free(piece);
    const std::int64_t before = resident_mib();
    const Weights weights;
    const auto copy = weights.copy();
    ::_exit(static_cast<int>(std::clamp<std::int64_t>(before - resident_mib(), 0, 100)));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) >= 48);
}
#endif
