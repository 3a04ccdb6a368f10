#include "actors/train/driver/first_loader.hpp"

#include "runtime/core/ending.hpp"

namespace troupe::train {

void FirstLoader::heard(const Progress& progress, Instant now) {
  if (since_ && progress.count != progress_.count) since_ = now;
  progress_ = progress;
}

std::optional<std::string> FirstLoader::overdue(Instant now) const {
  if (!since_ || now - *since_ < (reads_ ? deadlines_.hang : deadlines_.spawn)) return {};
  if (!reads_) return "it did not start within " + seconds_of(deadlines_.spawn);
  return "it has shown no progress for " + seconds_of(deadlines_.hang) + " in " +
         (progress_.doing.empty() ? "the first batch" : progress_.doing);
}

bool FirstLoader::try_again(const std::string& how) {
  return ++deaths_ < (ended_by_itself(how) ? restart_.at_one_step : restart_.budget);
}

Duration FirstLoader::pause() const {
  return restart_.pause_after(deaths_);
}

}  // namespace troupe::train
