/// Whose failure it is when a trainer's task throws. Pure.
#pragma once

#include <string>
#include <variant>

#include "actors/train/trainer/trainer_machine.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

/// The part of the job that a task runs: "Digits::criterion", "the optimizer of Digits". `part`:
/// TrainEngine::part().
inline std::string users_part(const std::string& job, const TrainerTask& task, const std::string& part) {
  const bool calls = std::holds_alternative<ComputeStep>(task) || std::holds_alternative<ApplyStep>(task) ||
                     std::holds_alternative<RunEvaluation>(task);
  if (!calls || part.empty()) return job;
  return part.starts_with("the ") ? part + " of " + job : job + "::" + part;
}

/// A failure of these is the system's (a file, a socket) and is reported, not deadly.
inline bool is_recoverable(const TrainerTask& task) {
  return std::holds_alternative<FormGroup>(task) || std::holds_alternative<LoadCheckpoint>(task) ||
         std::holds_alternative<RunCheckpoint>(task) || std::holds_alternative<RunPrune>(task) ||
         std::holds_alternative<ShareOut>(task) || std::holds_alternative<FollowSource>(task);
}

/// What of it the driver is told: it decides what to do.
inline TaskAborted aborted_by(const Error& error) {
  ErrorInfo why = error.info();
  why.todo.clear();
  return {why.message(), {}};
}

/// The others died, or the group was left: the next generation mends it.
inline bool is_of_the_group(ErrorCode code) {
  return code == ErrorCode::kAborted || code == ErrorCode::kTimeout || code == ErrorCode::kUnavailable ||
         code == ErrorCode::kActorDied || code == ErrorCode::kCorrupt;
}

}  // namespace troupe::train
