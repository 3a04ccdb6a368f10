/// What is wrong with a job can often be said before it is submitted, where its submitter stands.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/package/package_source.hpp"
#include "runtime/wire/submissions.hpp"
#include "scheduler/jobs/job_client.hpp"

namespace troupe {

/// As the head is asked, under an id of its own if it has none. Throws (kBadInput, kLimit) what no head
/// takes.
cluster::SubmissionSpec submission_of(const JobSpec& job);

/// A job as the head is asked to run it, and what the head must have before.
struct PreparedJob {
  cluster::SubmissionSpec spec;
  std::optional<PackageSource> package{};
  std::vector<std::string> notes{};  ///< for its submitter: what may not be as it seems
};
/// Looks at its program and working directory where its submitter stands, and packs them. Throws BadInput
/// when the working directory is not there or holds what cannot travel, or a program that has a '/' is not
/// there, is not executable, or is of another architecture than this one; LimitExceeded. A program without
/// '/' is looked for by its node.
PreparedJob prepared(JobSpec job, const PackageSource::Progress& progress = {});

}  // namespace troupe
