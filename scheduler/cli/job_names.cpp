#include "scheduler/cli/job_names.hpp"

#include <charconv>
#include <string_view>

#include "runtime/core/escape.hpp"
#include "scheduler/cli/job.hpp"

namespace troupe::cli {

int place_of_job(const std::string& name, const std::string& job) {
  if (job == name) return 1;
  if (!job.starts_with(name + "~")) return 0;
  const std::string_view digits = std::string_view(job).substr(name.size() + 1);
  int place = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), place);
  const bool whole = read.ec == std::errc() && read.ptr == digits.data() + digits.size();
  return whole && place > 1 && digits[0] != '0' ? place : 0;
}

const JobInfo* find_job(const std::vector<JobInfo>& newest_first, const std::string& name) {
  // "digits~2" may be the second of "digits", which stands before "digits~3".
  const std::string first = name.substr(0, name.rfind('~'));
  const int own = place_of_job(first, name);
  const auto place_behind = [&](const std::string& job) {
    const int place = own > 0 ? place_of_job(first, job) : 0;
    return place > own ? place : place_of_job(name, job);
  };
  int latest = 1;
  const JobInfo* named = nullptr;
  const JobInfo* successor = nullptr;
  for (const JobInfo& job : newest_first) {
    if (job.id == name) return &job;
    if (named == nullptr && job.name == name) named = &job;
    const int place = job.has_ended() ? 0 : place_behind(job.name);
    if (place <= latest) continue;
    successor = &job;
    latest = place;
  }
  return successor != nullptr && (named == nullptr || named->has_ended()) ? successor : named;
}

std::string job_called(JobClient& jobs, const std::string& name) {
  const auto all = jobs.list();
  const JobInfo* job = find_job(all, name);
  if (job == nullptr) return "";
  if (job->id != name && job->name != name)
    say_line("job " + escape_name(name) + " was replaced: its program runs as " + escape_name(job->name));
  return job->id;
}

}  // namespace troupe::cli
