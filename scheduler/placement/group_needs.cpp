#include "scheduler/placement/group_needs.hpp"

#include <algorithm>

namespace troupe::scheduler {

using cluster::BundleDemand;

cluster::ActorDemand demand_of(const BundleDemand& bundle) {
  return {bundle.cpu_e4, true, {}, bundle.gpu_e4, {}, -1, bundle.other};
}

BundleDemand total_of(const cluster::GroupSpec& spec, const std::vector<std::size_t>& bundles) {
  BundleDemand total;
  for (const std::size_t i : bundles) {
    const BundleDemand& bundle = spec.bundles[i];
    total.cpu_e4 += bundle.cpu_e4;
    total.gpu_e4 += bundle.gpu_e4;
    for (const auto& label : bundle.other.labels) {
      if (!cluster::has_labels(total.other.labels, {label})) total.other.labels.push_back(label);
    }
    add_amounts(total.other.amounts, bundle.other.amounts, 1);
  }
  return total;
}

Needs::Needs(const cluster::GroupSpec& spec) {
  for (const BundleDemand& bundle : spec.bundles) {
    for (const auto& amount : bundle.other.amounts) names.push_back(amount.name);
    if (!bundle.other.labels.empty()) label_sets.push_back(bundle.other.labels);
  }
  const auto once = [](auto& all) {
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
  };
  once(names);
  once(label_sets);
  for (const BundleDemand& bundle : spec.bundles) {
    Need need{bundle.cpu_e4, bundle.gpu_e4};
    for (const std::string& name : names) need.others.push_back(amount_of(bundle.other.amounts, name));
    if (!bundle.other.labels.empty()) {
      const auto at = std::lower_bound(label_sets.begin(), label_sets.end(), bundle.other.labels);
      need.labels = static_cast<std::size_t>(at - label_sets.begin());
    }
    of.push_back(std::move(need));
  }
}

void Needs::sort(std::vector<std::size_t>& bundles) const {
  std::stable_sort(bundles.begin(), bundles.end(),
                   [&](std::size_t a, std::size_t b) { return of[a].is_before(of[b]); });
}

}  // namespace troupe::scheduler
