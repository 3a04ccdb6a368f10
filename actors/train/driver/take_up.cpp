#include "actors/train/driver/take_up.hpp"

#include <algorithm>

#include "actors/train/driver/history.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

TakenUp take_up(const std::vector<checkpoint::ListedCheckpoint>& listed, const checkpoint::JobIdentity& job) {
  TakenUp taken;
  for (auto at = listed.rbegin(); at != listed.rend(); ++at) {
    if (!at->manifest) {
      taken.bad += (taken.bad.empty() ? "" : "; ") + at->manifest.error().message();
      continue;
    }
    const auto& manifest = *at->manifest;
    const auto other = difference(manifest.job, job);
    if (other && !taken.job)
      throw BadConfig("cannot train", "the checkpoint " + at->manifest_path + " is of another job: " + *other,
                      "resume with the same job, or name another checkpoint folder");
    const auto step = static_cast<std::int64_t>(manifest.position.global_step);
    if (other || (!taken.checkpoints.empty() && step > taken.checkpoints.back().step)) continue;
    if (!taken.job) taken.job = manifest.job;
    const auto history = manifest.metadata.find(kHistoryKey);
    taken.checkpoints.push_back({at->manifest_path, step, manifest.state_hash,
                                 history == manifest.metadata.end() ? "" : history->second});
  }
  std::reverse(taken.checkpoints.begin(), taken.checkpoints.end());
  return taken;
}

}  // namespace troupe::train
