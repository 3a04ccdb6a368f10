#include "actors/train/driver/failure_count.hpp"

#include <algorithm>
#include <utility>

namespace troupe::train {

JobFailed FailureCount::give_up(const std::string& where, const std::string& why) const {
  const bool hung = why.find("(deadlines.hang)") != std::string::npos;
  return {
      std::to_string(failures_) + " failures " + where + ", the last one: " + why,
      hung ? "look for what does not end in the job's code and data, or raise deadlines.hang if it is only "
             "slow"
           : "look for the cause in the job's code and data: what runs there fails whoever runs it"};
}

bool FailureCount::is_first_of_generation() {
  return std::exchange(blamed_in_, started_) != started_;
}

std::optional<JobFailed> FailureCount::generation_failed(const std::string& cause) {
  if (++failed_in_a_row_ <= policy_.budget) return std::nullopt;
  return JobFailed{std::to_string(failed_in_a_row_) + " generations failed in a row, the last one: " + cause,
                   {}};
}

std::optional<ActorId> FailureCount::take_most_suspected() {
  if (failed_in_a_row_ % failed_generations_ != 0 || suspected_.empty()) return std::nullopt;
  const auto most = std::max_element(suspected_.begin(), suspected_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  const ActorId suspect = most->first;
  suspected_.clear();
  return suspect;
}

void FailureCount::committed() {
  failed_in_a_row_ = 0;
  suspected_.clear();
}

}  // namespace troupe::train
