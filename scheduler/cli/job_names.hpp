/// Jobs by the words that a user gives: an id, or a name, also of one that was replaced.
#pragma once

#include <string>
#include <vector>

#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {

/// Which of the jobs that stand in for each other under `name` this is: 1 is that name itself, "digits~2" the
/// first one that took its place. 0: none of them. Pure.
int place_of_job(const std::string& name, const std::string& job);

/// The job with that id, else the newest with that name; where that was replaced (troupe serve run --replace)
/// and has ended, the last one that took its place and has not, as "digits~3" that of "digits~2" and of
/// "digits". Null: there is none. Pure.
const JobInfo* find_job(const std::vector<JobInfo>& newest_first, const std::string& name);
/// Its id; empty: there is none. Says on stderr if it has another name.
std::string job_called(JobClient& jobs, const std::string& name);

}  // namespace troupe::cli
