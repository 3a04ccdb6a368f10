#include "scheduler/cli/parked_jobs.hpp"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/escape.hpp"
#include "scheduler/cli/status.hpp"

namespace troupe::cli {
namespace {

using nlohmann::json;

constexpr Duration kLooksForEnd = std::chrono::milliseconds(300);
constexpr Duration kHeadMayBeAway = std::chrono::seconds(60);

std::vector<const wire::ActorStatus*> actors_of(const ParkedJob& parked) {
  std::vector<const wire::ActorStatus*> found;
  for (const auto& one : parked.all.actors) {
    if (one.record.spec.job == parked.job.job && one.record.spec.detached) found.push_back(&one);
  }
  return found;
}

}  // namespace

std::optional<ParkedJob> find_parked(const JobClientOptions& where, const std::string& name) {
  ParkedJob found{ask_status(where.folder, where.address), {}};
  const auto& jobs = found.all.jobs;
  const auto at = std::find_if(jobs.begin(), jobs.end(), [&](const auto& job) {
    return job.parked && (job.name == name || to_string(job.job) == name);
  });
  if (at == jobs.end()) return std::nullopt;
  found.job = *at;
  return found;
}

std::string why_parked(const wire::StatusAnswer& all, const cluster::JobRecord& job) {
  return "no program of it runs; detached actors stay: " + detached_of(all, job.job);
}

json parked_as_json(const wire::StatusAnswer& all, const cluster::JobRecord& job) {
  return {{"type", "DRIVER"},
          {"job_id", to_string(job.job)},
          {"submission_id", job.submission.empty() ? json() : json(job.submission)},
          {"metadata", {{"job_name", job.name}}},
          {"status", "PARKED"},
          {"message", why_parked(all, job)}};
}

int show_parked(const ParkedJob& parked, bool as_json) {
  if (as_json) {
    json shown = parked_as_json(parked.all, parked.job);
    shown["actors"] = json::array();
    for (const auto* actor : actors_of(parked)) shown["actors"].push_back(cli::as_json(parked.all, *actor));
    print_json(shown);
    return 0;
  }
  std::printf("job %s PARKED: %s\n", escape_name(parked.job.name).c_str(),
              escape_name(why_parked(parked.all, parked.job)).c_str());
  for (const auto* actor : actors_of(parked)) {
    const std::string node = node_name(parked.all, actor->record.node);
    std::printf("  %-16s %-10s %-12s %s\n", escape_name(actor->record.spec.name).c_str(),
                state_name(actor->record.state), escape_name(node).c_str(),
                escape_name(actor->reason).c_str());
  }
  return 0;
}

int wait_for_parked(const JobClientOptions& where, const ParkedJob& parked) {
  const std::string name = escape_name(parked.job.name);
  const MonotonicClock clock;
  for (Instant heard = clock.now();;) {
    try {
      const auto all = ask_status(where.folder, where.address);
      heard = clock.now();
      const auto at = std::find_if(all.jobs.begin(), all.jobs.end(),
                                   [&](const auto& job) { return job.job == parked.job.job; });
      if (at == all.jobs.end() || at->ended) {
        std::fprintf(stderr, "job %s has ended: its last detached actor has\n", name.c_str());
        return 0;
      }
      if (!at->parked) {
        std::fprintf(stderr, "job %s is not parked any more: a program has taken it over\n", name.c_str());
        return 0;
      }
    } catch (const Error&) {
      if (clock.now() - heard > kHeadMayBeAway) throw;
    }
    std::this_thread::sleep_for(kLooksForEnd);
  }
}

void refuse_logs_of_parked(const ParkedJob& parked) {
  std::string commands;
  for (const auto* actor : actors_of(parked))
    commands +=
        (commands.empty() ? "troupe logs --actor " : ", troupe logs --actor ") + actor->record.spec.name;
  throw_error({ErrorCode::kRefused, "cannot print the output of job " + parked.job.name,
               "it is parked: what its detached actors write is theirs, and that of its program went there",
               commands.empty() ? "troupe status shows it" : commands});
}

}  // namespace troupe::cli
