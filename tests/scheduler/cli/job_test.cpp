// What troupe job tells of jobs: tests/e2e/jobs_test.cpp runs it.
#include "scheduler/cli/job.hpp"

#include <catch2/catch.hpp>

#include "scheduler/cli/job_names.hpp"

using namespace troupe;

namespace {

JobInfo job_of(const std::string& id, const std::string& name, JobStatus status) {
  JobInfo job;
  job.id = id;
  job.name = name;
  job.status = status;
  return job;
}

std::string found(const std::vector<JobInfo>& newest_first, const std::string& name) {
  const JobInfo* job = cli::find_job(newest_first, name);
  return job == nullptr ? "" : job->id;
}

}  // namespace

// Was: the first of them, which has ended; troupe job stop of it stopped nothing.
TEST_CASE("a job that was replaced is found by its name where its program runs now") {
  const auto kEnded = JobStatus::kSucceeded, kRuns = JobStatus::kRunning;
  const std::vector<JobInfo> all{job_of("e", "digits~4", kEnded), job_of("d", "digits~3", kRuns),
                                 job_of("c", "digits~2", kEnded), job_of("b", "other", kRuns),
                                 job_of("a", "digits", kEnded)};
  CHECK(found(all, "digits") == "d");
  CHECK(found(all, "digits~2") == "d");  // was "c": one in the middle led to itself, which has ended
  CHECK(found(all, "digits~3") == "d");
  CHECK(found(all, "digits~4") == "e");  // "d" was before it
  CHECK(found(all, "digits~02") == "");
  CHECK(found({job_of("b", "a~2~3", kRuns), job_of("a", "a~2", kEnded)}, "a~2") == "b");
  CHECK(found(all, "a") == "a");
  CHECK(found(all, "other") == "b");
  CHECK(found(all, "none") == "");
  // One that starts has not taken its place yet.
  CHECK(found({job_of("b", "digits~2", JobStatus::kStarting), job_of("a", "digits", kRuns)}, "digits") ==
        "a");
  CHECK(found({job_of("b", "digits~2", kEnded), job_of("a", "digits", kEnded)}, "digits") == "a");
  CHECK(found({job_of("b", "digits", kRuns), job_of("a", "digits", kEnded)}, "digits") == "b");
  CHECK(found({job_of("c", "digits~10", kRuns), job_of("b", "digits~9", kRuns)}, "digits") == "c");
}

// Was: the code of the attempt before stood there as that of a job that waits or runs again.
TEST_CASE("an exit code is said of an attempt until the job has ended") {
  JobInfo job = job_of("a", "", JobStatus::kQueued);
  job.driver_exit_code = 137;
  CHECK(cli::as_json(job)["driver_exit_code"].is_null());
  CHECK(cli::as_json(job)["last_attempt_exit_code"] == 137);
  job.status = JobStatus::kFailed;
  CHECK(cli::as_json(job)["driver_exit_code"] == 137);
  CHECK(cli::as_json(job)["last_attempt_exit_code"].is_null());
}
