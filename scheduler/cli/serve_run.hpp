/// troupe serve run FILE.toml: a program that serves, as a job of a cluster, with what the file says of its
/// deployments; and the changes of the file, when it is applied again.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {

struct ServeRunWords {
  JobClientOptions where;
  std::string file;
  bool restart = false;  ///< the program may start again for what it cannot change while it runs
  bool replace = false;  ///< another process of the program takes the place of the one that runs
  bool detach = false;
  int timeout_s = 600;
};

int serve_run(const ServeRunWords& words);

/// Of the deployments that are waited for one that does not come to listen, and why, by what their program
/// tells of those. Pure.
std::optional<ErrorInfo> refused_of(const std::set<std::string>& waits,
                                    const nlohmann::ordered_json& refused);

/// Whether a program answers where it serves, and is not only answering what it has accepted, by what it
/// tells of its deployments. Pure.
bool serves_on(const nlohmann::ordered_json& deployments);

/// Of the ports where a program serves, those that its successor leaves: all that is served there the
/// successor serves at another one. By what both tell of their deployments. Pure.
std::vector<int> left_ports(const nlohmann::ordered_json& before, const nlohmann::ordered_json& after);

/// Whether a program that was heard on this host before serves on (serves_on()), by whether its job has ended
/// and what it tells now; null: nothing, and `is_silent` where a program is there that does not answer. One
/// that is not there has left. Pure.
bool goes_on(bool has_ended, const nlohmann::ordered_json* deployments, bool is_silent);

}  // namespace troupe::cli
