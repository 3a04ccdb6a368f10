#include "scheduler/cli/dashboard/snapshot.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "runtime/http/message.hpp"
#include "scheduler/cli/job.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMostNodes = 500, kMostJobs = 200, kMostKinds = 200, kMostWaiting = 100,
                      kMostDeployments = 200, kMostGroups = 100;

/// How many actors of a class and a job are in each state: trainers of a job are one line.
json kinds_of(const wire::StatusAnswer& status, std::size_t& left_out) {
  std::map<std::pair<std::string, std::string>, std::map<std::string, int>> kinds;
  for (const auto& [actor, reason] : status.actors)
    ++kinds[{job_name(status, actor.spec.job), actor.spec.type}][state_name(actor.state)];
  json all = json::array();
  for (const auto& [key, states] : kinds) {
    if (all.size() == kMostKinds) break;
    all.push_back({{"job", key.first}, {"class", key.second}, {"states", states}});
  }
  left_out = kinds.size() - all.size();
  return all;
}

void keep_first(json& list, std::size_t most) {
  if (list.size() > most) list.erase(list.begin() + static_cast<std::ptrdiff_t>(most), list.end());
}

json parsed(const std::vector<std::string>& lines) {
  json all = json::array();
  for (const std::string& line : lines) all.push_back(json::parse(line, nullptr, false));
  return all;
}

}  // namespace

std::string lower(std::string_view text) {
  std::string all(text);
  std::transform(all.begin(), all.end(), all.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return all;
}

json snapshot_of(const ClusterView& view) {
  const wire::StatusAnswer& status = view.status;
  json all = as_json(status);
  double cpus = 0, cpus_used = 0, gpus = 0, gpus_used = 0;
  for (const json& node : all["nodes"]) {
    cpus += node["cpus"].get<double>();
    cpus_used += node["cpus_used"].get<double>();
    gpus += static_cast<double>(node["gpus"].size());
    gpus_used += node["gpus_used"].get<double>();
  }
  all["totals"] = {{"nodes", status.nodes.size()},
                   {"actors", status.actors.size()},
                   {"cpus", cpus},
                   {"cpus_used", cpus_used},
                   {"gpus", gpus},
                   {"gpus_used", gpus_used},
                   {"waiting", status.waiting.size()}};
  // Of programs' jobs those that run: of the ended there may be thousands.
  json programs = json::array();
  for (const json& job : all["jobs"])
    if (!job["ended"].get<bool>()) programs.push_back(job);
  all["programs"] = std::move(programs);
  all["jobs"] = json::array();
  for (const JobInfo& job : view.jobs) {
    if (all["jobs"].size() == kMostJobs) break;
    all["jobs"].push_back(as_json(job));
  }
  std::size_t kinds_left_out = 0;
  all["actors"] = kinds_of(status, kinds_left_out);
  all["left_out"] = {
      {"nodes", status.nodes.size() - std::min(status.nodes.size(), kMostNodes)},
      {"jobs", view.jobs.size() - all["jobs"].size()},
      {"actors", kinds_left_out},
      {"groups", status.groups.size() - std::min(status.groups.size(), kMostGroups)},
      {"waiting", status.waiting.size() - std::min(status.waiting.size(), kMostWaiting)},
      {"deployments", view.deployments.size() - std::min(view.deployments.size(), kMostDeployments)}};
  keep_first(all["nodes"], kMostNodes);
  keep_first(all["waiting"], kMostWaiting);
  keep_first(all["groups"], kMostGroups);
  all["sweeps"] = parsed(view.sweeps);
  all["deployments"] = view.deployments;
  keep_first(all["deployments"], kMostDeployments);
  all["training"] = parsed(view.training);
  all["error"] = view.error.empty() ? json() : json(view.error);
  return all;
}

json page_of_actors(const wire::StatusAnswer& status, std::string_view text, std::size_t offset,
                    std::size_t limit) {
  const std::string wanted = lower(text);
  std::map<NodeId, std::string> nodes;
  for (const auto& node : status.nodes) nodes[node.node.id] = node.node.name;
  std::map<JobId, std::string> jobs;
  for (const auto& job : status.jobs) jobs[job.job] = job.name;
  json page = json::array();
  std::size_t total = 0;
  for (const auto& [actor, reason] : status.actors) {
    const auto job = jobs.find(actor.spec.job);
    json row{{"id", to_string(actor.actor)},
             {"class", actor.spec.type},
             {"name", actor.spec.name},
             {"job", job == jobs.end() ? to_string(actor.spec.job) : job->second},
             {"node", nodes.contains(actor.node) ? nodes[actor.node] : to_string(actor.node)},
             {"state", state_name(actor.state)}};
    const auto has = [&](const char* field) {
      return lower(row[field].get_ref<const std::string&>()).find(wanted) != std::string::npos;
    };
    constexpr std::array kSearched = {"class", "name", "job", "node", "state", "id"};
    if (!std::any_of(kSearched.begin(), kSearched.end(), has)) continue;
    if (total >= offset && page.size() < limit) {
      row["why"] = reason;
      page.push_back(std::move(row));
    }
    ++total;
  }
  return {{"total", total}, {"offset", offset}, {"actors", std::move(page)}};
}

std::optional<std::string> parameter_of(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const auto end = std::min(query.find('&'), query.size());
    const std::string_view one = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const auto equals = one.find('=');
    if (equals == std::string_view::npos || one.substr(0, equals) != name) continue;
    std::string value(one.substr(equals + 1));
    std::replace(value.begin(), value.end(), '+', ' ');
    return http::percent_decode(value);
  }
  return std::nullopt;
}

bool is_own_host(std::string_view host, std::string_view bound) {
  // "[::1]:8265", "localhost:8265", "127.0.0.1"
  const bool bracketed = host.starts_with('[');
  const auto end = bracketed ? host.find(']') : host.find(':');
  std::string_view name = host.substr(0, end);
  if (bracketed) name.remove_prefix(1);
  if (name == bound || lower(name) == "localhost" || name == "::1") return true;
  const bool numeric = !name.empty() && name.find_first_not_of("0123456789.") == std::string_view::npos;
  return numeric && name.starts_with("127.");
}

}  // namespace troupe::cli
