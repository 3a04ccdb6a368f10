/// When failures are enough: at one step, by the job's own code; and generations that fail in a row.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "actors/train/driver/driver_types.hpp"

namespace troupe::train {

/// A value. Not thread-safe.
///
/// Invariants: failures are counted at the latest step that had one; trainers of one generation that fail
/// count once; a commit ends the row of failed generations, and all suspicion.
class FailureCount {
 public:
  FailureCount(const RestartPolicy& policy, int failed_generations)
      : policy_(policy), failed_generations_(failed_generations) {}

  /// A failure that runs again as it ran before, if the code is what failed. The job fails with `why` when it
  /// is enough; `where` says where a step is.
  template <class Where>
  std::optional<JobFailed> at_step(std::int64_t step, const std::string& why, const Where& where) {
    if (step > step_) step_ = step, failures_ = 0;
    if (++failures_ < policy_.at_one_step) return std::nullopt;
    return give_up(where(step_), why);
  }

  /// A generation got its plan.
  void begin_generation(Generation generation) { started_ = generation; }
  /// True once a generation: trainers that die of one thing, one after another, have failed once.
  bool is_first_of_generation();

  /// A generation failed, and its trainer `reporter` waited in vain for `suspect`.
  void suspect(ActorId suspect) { ++suspected_[suspect]; }
  void forget(ActorId dead) { suspected_.erase(dead); }
  /// A generation failed because of `cause`: the job fails when it is enough.
  std::optional<JobFailed> generation_failed(const std::string& cause);
  /// Whom others waited for most often, when enough generations have failed; then suspicion begins anew.
  std::optional<ActorId> take_most_suspected();
  /// A step was committed.
  void committed();

 private:
  JobFailed give_up(const std::string& where, const std::string& why) const;

  RestartPolicy policy_;
  int failed_generations_;
  std::int64_t step_ = -1;  ///< the latest with a failure
  int failures_ = 0;        ///< at it
  Generation started_;      ///< the last that got a plan
  Generation blamed_in_;    ///< the last in which a trainer's failure was blamed on the code
  int failed_in_a_row_ = 0;
  std::map<ActorId, int> suspected_;
};

}  // namespace troupe::train
