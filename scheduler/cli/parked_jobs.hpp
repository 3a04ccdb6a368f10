/// What `troupe job` says of job names of which no program runs, and whose detached actors stay: they have no
/// record of a submission, or that has ended.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "runtime/wire/messages.hpp"
#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {

struct ParkedJob {
  wire::StatusAnswer all;
  cluster::JobRecord job;
};
/// By name or id. Throws Error: the head does not answer.
std::optional<ParkedJob> find_parked(const JobClientOptions& where, const std::string& name);
/// "no program of it runs; detached actors stay: counter, sums".
std::string why_parked(const wire::StatusAnswer& all, const cluster::JobRecord& job);
nlohmann::json parked_as_json(const wire::StatusAnswer& all, const cluster::JobRecord& job);

/// With its actors: where they are, or what they wait for.
int show_parked(const ParkedJob& parked, bool as_json);
/// Until its actors have ended, or a program has taken it over. A head that is away for a minute ends the
/// wait, too.
int wait_for_parked(const JobClientOptions& where, const ParkedJob& parked);
/// Throws Refused, with the command that prints what its actors write.
[[noreturn]] void refuse_logs_of_parked(const ParkedJob& parked);

}  // namespace troupe::cli
