#include "actors/train/trainer/fetch_snapshot.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/driver/train_driver.hpp"
#include "actors/train/engine/forked_copy.hpp"
#include "actors/train/engine/state_parts.hpp"
#include "runtime/core/condition.hpp"
#include "runtime/core/thread.hpp"

namespace troupe::train {

/// What came from a donor.
struct Donated {
  std::unique_ptr<std::byte[]> memory;  ///< null: it gave nothing
  std::uint64_t bytes = 0;
  StateHash hash;    ///< hash_of_bytes
  std::string lost;  ///< why it gave nothing; empty: it was not asked, or has given the copy up
};

namespace {

/// A state is large: of pages of 4 KiB the first touch of each costs more than the copy.
void ask_for_huge_pages(std::span<std::byte> memory) {
  constexpr std::uintptr_t kHuge = std::uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory.data()) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size()) / kHuge * kHuge;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

std::unique_ptr<std::byte[]> memory_of(std::uint64_t bytes) {
  // Not zeroed: every byte is written, and a state is large.
  auto memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  ask_for_huge_pages({memory.get(), static_cast<std::size_t>(bytes)});
  return memory;
}

/// In one copy, where the donor is on this host and the kernel allows it. Else nothing.
Donated take_from_memory(const StateMemory& there, const std::function<void()>& progress) {
  Donated state;
  for (const auto& run : there.runs) state.bytes += run.bytes;
  state.memory = memory_of(state.bytes);
  checkpoint::Xxh3 hash;
  const auto came = [&](std::span<const std::byte> piece) {
    hash.update(piece);
    progress();
  };
  if (!read_memory(there, {state.memory.get(), static_cast<std::size_t>(state.bytes)}, came)) return {};
  state.hash = hash_text(hash.digest());
  return state;
}

Donated take_in_pieces(const ActorHandle<Trainer>& trainer, std::uint64_t number,
                       const std::function<void()>& progress) {
  const auto ask = [&](std::uint64_t offset) { return trainer.call<&Trainer::kept>(number, offset); };
  Future<SharedPiece> next = ask(0);
  StateFollower follower([&](std::uint64_t offset) {
    // The donor reads the piece behind this one meanwhile.
    const auto asked = std::exchange(next, ask(offset + kSharedPiece));
    return await(asked, progress);
  });
  for (bool more = true; more;) {
    more = follower.pull();
    if (auto state = follower.take_state()) {
      const std::uint64_t bytes = follower.head().bytes;
      const auto hash = hash_of_bytes({state->memory.get(), static_cast<std::size_t>(bytes)}, progress);
      return {std::move(state->memory), bytes, hash, {}};
    }
  }
  throw_error({ErrorCode::kCorrupt, "a state that arrives is not what was sent", "it ends early", ""});
}

Donated take_from_donor(const ActorHandle<TrainDriver>& driver, ProcessGate& process,
                        const std::function<void()>& progress) {
  const StateDonor donor = await(driver.call<&TrainDriver::state_donor>(), progress);
  if (donor.who.empty()) return {};
  const ActorHandle<Trainer> trainer(&process, donor.trainer);
  const KeptPlace place =
      await(trainer.call<&Trainer::kept_place>(donor.number, std::int32_t{::getpid()}), progress);
  if (place.given_up) return {};
  Donated state;
  if (place.memory && donor.trainer.node == process.config().node)
    state = take_from_memory(*place.memory, progress);
  if (state.memory == nullptr) state = take_in_pieces(trainer, donor.number, progress);
  trainer.tell<&Trainer::kept_is_taken>(donor.number);
  return state;
}

wire::Bytes take_from_driver(const ActorHandle<TrainDriver>& driver, const StateHash& hash,
                             const std::function<void()>& progress) {
  wire::Bytes all;
  for (wire::Bytes piece; all.empty() || !piece.empty(); all.insert(all.end(), piece.begin(), piece.end()))
    piece = await(driver.call<&TrainDriver::snapshot>(all.size()), progress);
  if (const auto held = hash_of_bytes(all, progress); held != hash)
    throw_error({ErrorCode::kCorrupt, "the snapshot is not what was taken",
                 "its bytes are " + held + " here, and were " + hash, ""});
  return all;
}

}  // namespace

/// A thread that asks the donor, for as long as this lives.
class SnapshotSource::Fetch {
 public:
  Fetch(const ActorHandle<TrainDriver>& driver, ProcessGate& process) {
    thread_ = Thread([this, driver, &process] { run(driver, process); });
  }
  ~Fetch() {
    stopping_ = true;
    thread_.join();
  }
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  Donated wait(const std::function<void()>& progress) {
    std::unique_lock lock(mutex_);
    while (!done_) {
      wake_.wait_for(lock, kPieceLook);
      lock.unlock();
      progress();
      lock.lock();
    }
    return std::move(came_);
  }

 private:
  void run(const ActorHandle<TrainDriver>& driver, ProcessGate& process) {
    Donated came;
    try {
      came = take_from_donor(driver, process, [this] {
        if (stopping_) throw_error({ErrorCode::kAborted, "the state is not wanted any more", "", ""});
      });
    } catch (const Error& error) {
      came.lost = error.info().message();
    } catch (const std::exception& error) {
      came.lost = error.what();
    }
    const std::lock_guard lock(mutex_);
    came_ = std::move(came);
    done_ = true;
    wake_.notify_all();
  }

  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  ///< guards what follows
  Condition wake_;
  Donated came_;
  bool done_ = false;
  Thread thread_;
};

SnapshotSource::SnapshotSource(ActorHandle<TrainDriver> driver, ProcessGate& process, bool begins)
    : driver_(driver),
      process_(process),
      fetch_(begins ? std::make_unique<Fetch>(driver, process) : nullptr) {}

SnapshotSource::~SnapshotSource() = default;

void SnapshotSource::install(TrainEngine& engine, const StateHash& hash, bool own_options,
                             const std::function<void()>& progress) {
  if (fetch_ == nullptr) fetch_ = std::make_unique<Fetch>(driver_, process_);
  const auto fetch = std::move(fetch_);
  Donated came = fetch->wait(progress);
  if (came.memory != nullptr && came.hash != hash)
    came = {.memory = {}, .bytes = 0, .hash = {}, .lost = "its bytes are " + came.hash + ", not " + hash};
  if (!came.lost.empty()) driver_.tell<&TrainDriver::donor_lost>(came.lost);
  wire::Bytes all;
  wire::ByteView bytes{came.memory.get(), static_cast<std::size_t>(came.bytes)};
  if (came.memory == nullptr) bytes = all = take_from_driver(driver_, hash, progress);
  auto parts = checkpoint::read_safetensors("the snapshot", bytes).value().tensors;
  if (own_options) {
    engine.install_with_own_options(std::move(parts));
  } else {
    engine.install(parts);
  }
}

void install_checkpoint(TrainEngine& engine, checkpoint::CheckpointStore store, const std::string& path,
                        const StateHash& hash) {
  auto opened = store.open_manifest(path).value();
  if (const auto& manifest = opened.manifest(); manifest.state_hash != hash) {
    throw_error({ErrorCode::kCorrupt, "the checkpoint '" + path + "' is another one here",
                 "its state is " + manifest.state_hash + ", the job's is " + hash,
                 "share the checkpoint folder between the nodes, or empty it there"});
  }
  engine.install(opened.tensors(), [&](const StatePart& part) { return opened.bytes_of(part).value(); });
}

}  // namespace troupe::train
