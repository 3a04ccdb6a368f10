/// What is wrong with a job can often be said before it is submitted, where its submitter stands.
#pragma once

#include <string>

#include "scheduler/jobs/job_client.hpp"

namespace troupe {

/// Its program and working directory as the nodes are told them: absolute. Throws (BadInput's kind) when the
/// working directory is not there, or a program that has a '/' is not there, is not executable, or is of
/// another architecture than this one. A program without '/' is looked for by its node.
JobSpec checked(JobSpec job);

}  // namespace troupe
