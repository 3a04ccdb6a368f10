#include "actors/train/trainer/fetch_snapshot.hpp"

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
  std::vector<std::unique_ptr<std::byte[]>> memory;  ///< none: it gave nothing
  std::vector<StatePart> parts;                      ///< of that
  StateHash hash;                                    ///< hash_of_bytes
  std::string lost;  ///< why it gave nothing; empty: it was not asked, or has given the copy up
};

namespace {

/// Memory that is not zeroed: every byte is written, and a state is large.
std::span<std::byte> add_memory(Donated& to, std::uint64_t bytes) {
  to.memory.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes)));
  return {to.memory.back().get(), static_cast<std::size_t>(bytes)};
}

/// In one copy, where the donor is on this host and the kernel allows it. Else nothing. Each part gets memory
/// of its own: the allocator has that of the clone before, where one piece of it all would be taken from the
/// kernel page by page, which takes longer than the copy.
Donated take_from_memory(const StateMemory& there, const std::function<void()>& progress) {
  Donated state;
  checkpoint::Xxh3 hash;
  const auto read = [&](std::size_t run) -> std::span<std::byte> {
    const auto into = add_memory(state, there.runs[run].bytes);
    const bool came =
        read_memory({there.pid, {there.runs[run]}}, into, [&](std::span<const std::byte> piece) {
          hash.update(piece);
          progress();
        });
    return came ? into : std::span<std::byte>();
  };
  if (there.runs.empty()) return {};
  std::uint64_t all = 0;
  for (const auto& run : there.runs) all += run.bytes;
  const auto prefix = read(0);
  if (prefix.empty()) return {};
  auto layout = checkpoint::read_safetensors_header("a state in memory", prefix, all);
  if (!layout || layout->tensors.size() + 1 != there.runs.size()) return {};
  for (std::size_t i = 0; i < layout->tensors.size(); ++i) {
    StatePart& part = layout->tensors[i];
    if (part.bytes.size() != there.runs[i + 1].bytes) return {};
    const auto bytes = read(i + 1);
    if (bytes.size() != part.bytes.size()) return {};
    part.bytes = bytes;
  }
  state.parts = std::move(layout->tensors);
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
      Donated came;
      came.hash =
          hash_of_bytes({state->memory.get(), static_cast<std::size_t>(follower.head().bytes)}, progress);
      came.memory.push_back(std::move(state->memory));
      came.parts = std::move(state->parts);
      return came;
    }
  }
  throw_error({ErrorCode::kCorrupt, "a state that arrives is not what was sent", "it ends early", ""});
}

Donated take_from_donor(const ActorHandle<TrainDriver>& driver, ProcessGate& process,
                        const std::function<void()>& progress) {
  const StateDonor donor = await(driver.call<&TrainDriver::state_donor>(), progress);
  if (donor.who.empty()) return {};
  const ActorHandle<Trainer> trainer(&process, donor.trainer);
  const bool is_here = donor.trainer.node == process.config().node;
  // On another node this number is some other process's there, which is to read nothing.
  const std::int32_t reader = is_here ? ::getpid() : 0;
  const KeptPlace place = await(trainer.call<&Trainer::kept_place>(donor.number, reader), progress);
  if (place.given_up) return {};
  Donated state;
  if (place.memory && is_here) state = take_from_memory(*place.memory, progress);
  if (state.memory.empty()) state = take_in_pieces(trainer, donor.number, progress);
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

void SnapshotSource::drop() {
  fetch_.reset();
}

void SnapshotSource::install(TrainEngine& engine, const StateHash& hash, bool own_options,
                             const std::function<void()>& progress) {
  if (fetch_ == nullptr) fetch_ = std::make_unique<Fetch>(driver_, process_);
  const auto fetch = std::move(fetch_);
  Donated came = fetch->wait(progress);
  if (!came.memory.empty() && came.hash != hash)
    came = {.memory = {}, .parts = {}, .hash = {}, .lost = "its bytes are " + came.hash + ", not " + hash};
  if (!came.lost.empty()) driver_.tell<&TrainDriver::donor_lost>(came.lost);
  wire::Bytes all;
  auto& parts = came.parts;
  if (came.memory.empty()) {
    all = take_from_driver(driver_, hash, progress);
    parts = checkpoint::read_safetensors("the snapshot", all).value().tensors;
  }
  if (own_options) {
    engine.install_with_own_options(std::move(parts));
  } else {
    engine.install(parts);
  }
}

}  // namespace troupe::train
