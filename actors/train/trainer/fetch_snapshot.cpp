#include "actors/train/trainer/fetch_snapshot.hpp"

#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/driver/train_driver.hpp"

namespace troupe::train {
namespace {

/// None where no trainer keeps it, or that one cannot give it: then the driver knows why.
std::optional<ReceivedState> take_from_donor(const ActorHandle<TrainDriver>& driver, ProcessGate& process,
                                             const std::function<void()>& progress) {
  const StateDonor donor = await(driver.call<&TrainDriver::state_donor>(), progress);
  if (donor.who.empty()) return std::nullopt;
  const ActorHandle<Trainer> trainer(&process, donor.trainer);
  const auto ask = [&](std::uint64_t offset) { return trainer.call<&Trainer::kept>(donor.number, offset); };
  try {
    Future<SharedPiece> next = ask(0);
    StateFollower follower([&](std::uint64_t offset) {
      // The donor reads the piece behind this one meanwhile.
      const auto asked = std::exchange(next, ask(offset + kSharedPiece));
      return await(asked, progress);
    });
    for (bool more = true; more;) {
      more = follower.pull();
      if (auto state = follower.take_state()) return state;
    }
    throw_error({ErrorCode::kCorrupt, "a state that arrives is not what was sent", "it ends early", ""});
  } catch (const Error& error) {
    progress();  // this one may be what was given up
    driver.tell<&TrainDriver::donor_lost>(error.info().message());
    return std::nullopt;
  }
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

void install_snapshot(TrainEngine& engine, const ActorHandle<TrainDriver>& driver, ProcessGate& process,
                      const StateHash& hash, bool own_options, const std::function<void()>& progress) {
  wire::Bytes all;
  std::optional<ReceivedState> received = take_from_donor(driver, process, progress);
  if (!received) {
    all = take_from_driver(driver, hash, progress);
    received.emplace().parts = checkpoint::read_safetensors("the snapshot", all).value().tensors;
  }
  if (own_options) {
    engine.install_with_own_options(std::move(received->parts));
  } else {
    engine.install(received->parts);
  }
}

void install_checkpoint(TrainEngine& engine, checkpoint::CheckpointStore store, const std::string& path,
                        const StateHash& hash) {
  const auto loaded = store.load_manifest(path).value();
  if (loaded.manifest.state_hash != hash) {
    throw_error({ErrorCode::kCorrupt, "the checkpoint '" + path + "' is another one here",
                 "its state is " + loaded.manifest.state_hash + ", the job's is " + hash,
                 "share the checkpoint folder between the nodes, or empty it there"});
  }
  engine.install(loaded.tensors);
}

}  // namespace troupe::train
