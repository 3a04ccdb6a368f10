#include "actors/train/trainer/fetch_snapshot.hpp"

#include "actors/train/driver/train_driver.hpp"

namespace troupe::train {

wire::Bytes fetch_snapshot(const ActorHandle<TrainDriver>& driver, const StateHash& hash,
                           const std::function<void()>& progress) {
  wire::Bytes all;
  for (wire::Bytes piece; all.empty() || !piece.empty(); all.insert(all.end(), piece.begin(), piece.end()))
    piece = await(driver.call<&TrainDriver::snapshot>(all.size()), progress);
  if (const auto held = hash_of_bytes(all, progress); held != hash)
    throw_error({ErrorCode::kCorrupt, "the snapshot is not what was taken",
                 "its bytes are " + held + " here, and were " + hash, ""});
  return all;
}

}  // namespace troupe::train
