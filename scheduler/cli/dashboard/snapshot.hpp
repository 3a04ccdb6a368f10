/// What the dashboard shows, as JSON, and how its addresses are read. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/wire/messages.hpp"
#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {

/// What was last heard, and of whom.
struct ClusterView {
  wire::StatusAnswer status;
  std::vector<JobInfo> jobs;        ///< the newest first
  std::vector<std::string> sweeps;  ///< of each a line of JSON, as troupe tune list -o json has it
  std::vector<nlohmann::ordered_json> deployments;  ///< each as troupe serve status -o json has it
  std::vector<std::string> training;                ///< of each a line of JSON: TrainingCurve::as_json
  std::string error;                                ///< why it is no newer; empty: it is of now
};

/// ASCII letters alone.
std::string lower(std::string_view text);

/// One object, bounded whatever the cluster's size: 500 nodes, 200 jobs, 200 kinds of actors, 100 spawns that
/// wait, 200 deployments; what was left out is counted. Actors come a page at a time.
nlohmann::json snapshot_of(const ClusterView& view);

/// {"total", "offset", "actors"}: those whose class, name, job, node or state has `text` in it, without
/// regard to case.
nlohmann::json page_of_actors(const wire::StatusAnswer& status, std::string_view text, std::size_t offset,
                              std::size_t limit);

/// "since" in "since=12&text=a%20b": decoded; nothing where it is not there or is badly written.
std::optional<std::string> parameter_of(std::string_view query, std::string_view name);

/// Whether a browser that shows this machine's own page sent it there: a page of a stranger's whose name was
/// made to stand for this address says that name. `host` is the field Host.
bool is_own_host(std::string_view host, std::string_view bound);

}  // namespace troupe::cli
