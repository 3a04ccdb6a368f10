/// What the bundles of a placement group ask for, as its planners look at it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/wire/cluster.hpp"
#include "runtime/wire/groups.hpp"

namespace troupe::scheduler {

cluster::ActorDemand demand_of(const cluster::BundleDemand& bundle);
/// What these bundles ask for together, by their place in the group.
cluster::BundleDemand total_of(const cluster::GroupSpec& spec, const std::vector<std::size_t>& bundles);

/// Memory and custom resources that a group asks for are numbered, and so are the different sets of labels:
/// what a search looks at are numbers.
using Amounts = std::vector<std::int64_t>;  ///< by number of the resource
constexpr std::size_t kNoLabels = SIZE_MAX;

/// What a bundle asks for.
struct Need {
  std::int64_t cpu_e4 = 0;
  std::int64_t gpu_e4 = 0;
  Amounts others{};
  std::size_t labels = kNoLabels;  ///< the number of its set of labels
  bool operator==(const Need&) const = default;

  /// Whatever has room for this has room for `less`.
  bool is_no_less_than(const Need& less) const {
    if (cpu_e4 < less.cpu_e4 || gpu_e4 < less.gpu_e4) return false;
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (others[i] < less.others[i]) return false;
    }
    return less.labels == kNoLabels || less.labels == labels;
  }
  /// The largest are placed first, and before those that any node may have those that want labels.
  bool is_before(const Need& other) const {
    const std::size_t wants = labels + 1, other_wants = other.labels + 1;  // kNoLabels: 0
    return std::tie(gpu_e4, others, wants, cpu_e4) >
           std::tie(other.gpu_e4, other.others, other_wants, other.cpu_e4);
  }
};

/// Of all bundles of a group.
struct Needs {
  explicit Needs(const cluster::GroupSpec& spec);
  const Need& operator[](std::size_t bundle) const { return of[bundle]; }
  /// Sorts bundles: the largest first; of those that are alike the first.
  void sort(std::vector<std::size_t>& bundles) const;

  std::vector<std::string> names;                       ///< of resources that they ask for
  std::vector<std::vector<cluster::Label>> label_sets;  ///< the same of labels
  std::vector<Need> of;                                 ///< by bundle
};

}  // namespace troupe::scheduler
