// troupe group: placement groups, as the head has them.
#include <cstdio>
#include <set>

#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/placement/group_plan.hpp"

namespace troupe::cli {
namespace {

using cluster::GroupRecord;
using nlohmann::json;

const char* state_name(cluster::GroupState state) {
  switch (state) {
    case cluster::GroupState::kWaiting:
      return "waiting";
    case cluster::GroupState::kReady:
      return "ready";
    case cluster::GroupState::kEnding:
      return "ending";
  }
  return "?";
}

/// Of its bundles, each once.
std::string nodes_of(const wire::StatusAnswer& all, const GroupRecord& group) {
  std::string names;
  std::set<NodeId> seen;
  for (const auto& bundle : group.placed) {
    if (bundle.node && seen.insert(bundle.node).second)
      names += (names.empty() ? "" : ", ") + node_name(all, bundle.node);
  }
  return names.empty() ? "-" : names;
}

}  // namespace

json groups_as_json(const wire::StatusAnswer& all) {
  json groups = json::array();
  for (const auto& [group, reason] : all.groups) {
    json bundles = json::array();
    for (std::size_t i = 0; i < group.placed.size(); ++i) {
      const auto& asked = group.spec.bundles[i];
      const NodeId node = group.placed[i].node;
      bundles.push_back({{"cpus", static_cast<double>(asked.cpu_e4) / cluster::kCpu},
                         {"gpus", static_cast<double>(asked.gpu_e4) / cluster::kGpu},
                         {"resources", as_json(asked.other.amounts)},
                         {"labels", as_json(asked.other.labels)},
                         {"node", node ? json(to_string(node)) : json()},
                         {"node_name", node ? json(node_name(all, node)) : json()},
                         {"node_gpus", group.placed[i].gpus}});
    }
    groups.push_back({{"id", to_string(group.group)},
                      {"name", group.spec.name},
                      {"job", job_name(all, group.spec.job)},
                      {"strategy", scheduler::name_of(group.spec.strategy)},
                      {"state", state_name(group.state)},
                      {"generation", group.generation},
                      {"bundles", bundles},
                      {"why", reason}});
  }
  return groups;
}

void print_groups(const wire::StatusAnswer& all) {
  std::printf("%-18s %-14s %-14s %-14s %-8s %7s  %-20s %s\n", "group", "name", "job", "strategy", "state",
              "bundles", "nodes", "why");
  for (const auto& [group, reason] : all.groups) {
    std::printf("%-18s %-14s %-14s %-14s %-8s %7zu  %-20s %s\n", to_string(group.group).c_str(),
                group.spec.name.empty() ? "-" : escape_name(group.spec.name).c_str(),
                escape_name(job_name(all, group.spec.job)).c_str(), scheduler::name_of(group.spec.strategy),
                state_name(group.state), group.placed.size(), escape_name(nodes_of(all, group)).c_str(),
                escape_name(reason).c_str());
  }
}

int list_groups(const GroupOptions& options) {
  const auto all = ask_status(options.folder, options.address);
  if (options.output == "json") {
    std::printf("%s\n", groups_as_json(all).dump(2, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    print_groups(all);
  }
  return 0;
}

}  // namespace troupe::cli
