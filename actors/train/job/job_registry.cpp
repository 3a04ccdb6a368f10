#include "actors/train/job/job_registry.hpp"

namespace troupe::train {

JobRegistry& JobRegistry::instance() {
  static JobRegistry registry;
  return registry;
}

bool JobRegistry::add(std::uint64_t id, JobType type) {
  return types_.emplace(id, std::move(type)).second;
}

const JobType& JobRegistry::find(std::uint64_t id) const {
  const auto at = types_.find(id);
  if (at == types_.end()) {
    throw Refused({ErrorCode::kRefused, "cannot run the job", "this executable does not know its type",
                   "driver and workers must be the same build"});
  }
  return at->second;
}

}  // namespace troupe::train
