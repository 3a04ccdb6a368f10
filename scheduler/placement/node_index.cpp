#include "scheduler/placement/node_index.hpp"

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime/core/count.hpp"

namespace troupe::scheduler {
namespace {

using cluster::ActorDemand;
using cluster::deal_gpus;
using cluster::format_amount;
using cluster::format_cpus;
using cluster::format_gpus;
using cluster::free_gpu;
using cluster::kGpu;
using cluster::kMaxCpu_e4;
using cluster::NodeView;
using cluster::Placement;
using cluster::PlacementVerdict;
using cluster::ResourceAmount;

/// So many nodes are named in a sentence; the others are counted.
constexpr std::size_t kNearestNamed = 4;
/// No resource has that name.
const std::string kGpus = "GPU";

std::int64_t free_cpu(const NodeView& node) {
  return node.cpu_e4 - node.cpu_used_e4;
}

std::int64_t all_gpu(const NodeView& node) {
  return static_cast<std::int64_t>(node.gpus.size()) * kGpu;
}

std::string describe(const NodeView& node) {
  return node.name + " has " + format_cpus(free_cpu(node)) + " of " + format_cpus(node.cpu_e4) +
         (node.suspect ? " and is silent" : "");
}

/// As a demand for GPUs sees it: what is free of each GPU counts, not the sum alone.
std::string describe_gpus(const NodeView& node, const ActorDemand& demand) {
  std::string parts;
  for (const std::int64_t held : node.gpus) {
    if (held > 0 && held < kGpu) parts += (parts.empty() ? "" : ", ") + format_cpus(kGpu - held);
  }
  std::string text =
      node.name + " has " + format_cpus(free_gpu(node.gpus)) + " of " + format_gpus(all_gpu(node));
  if (!parts.empty()) text += " (" + parts + " of GPUs that others share)";
  if (demand.cpu_e4 > 0)
    text += " and " + format_cpus(free_cpu(node)) + " of " + format_cpus(node.cpu_e4) + " CPUs";
  return text + (node.suspect ? " and is silent" : "");
}

/// "1 of 2 tpu", "0.5 GiB of 1 GiB of memory".
std::string free_of_all(const NodeView& node, const std::string& name) {
  const std::int64_t all = amount_of(node.other.amounts, name);
  const std::int64_t free = all - amount_of(node.other_used, name);
  const std::string text = name == cluster::kMemory ? cluster::format_bytes(free) : format_cpus(free);
  return text + " of " + format_amount({name, all});
}

std::string missing_labels(const NodeView& node, const ActorDemand& demand) {
  cluster::OtherResources missing;
  for (const cluster::Label& label : demand.other.labels) {
    if (!has_labels(node.other.labels, {label})) missing.labels.push_back(label);
  }
  return format_other(missing);
}

std::string describe(const NodeView& node, const ActorDemand& demand) {
  if (demand.other.empty()) return demand.gpu_e4 > 0 ? describe_gpus(node, demand) : describe(node);
  std::string parts;
  const auto add = [&](const std::string& part) { parts += (parts.empty() ? "" : ", ") + part; };
  if (demand.gpu_e4 > 0) add(format_cpus(free_gpu(node.gpus)) + " of " + format_gpus(all_gpu(node)));
  if (demand.cpu_e4 > 0) add(format_cpus(free_cpu(node)) + " of " + format_cpus(node.cpu_e4) + " CPU");
  for (const ResourceAmount& one : demand.other.amounts) add(free_of_all(node, one.name));
  if (const std::string missing = missing_labels(node, demand); !missing.empty()) add("no " + missing);
  return node.name + " has " + (parts.empty() ? "it" : parts) + (node.suspect ? " and is silent" : "");
}

bool could_hold(const NodeView& node, const ActorDemand& demand) {
  return node.cpu_e4 >= demand.cpu_e4 && all_gpu(node) >= demand.gpu_e4 &&
         has_amounts(node.other.amounts, {}, demand.other.amounts) &&
         has_labels(node.other.labels, demand.other.labels);
}

/// Whatever is free of each single GPU.
bool has_in_all(const NodeView& node, const ActorDemand& demand) {
  return !node.suspect && free_cpu(node) >= demand.cpu_e4 && free_gpu(node.gpus) >= demand.gpu_e4 &&
         has_amounts(node.other.amounts, node.other_used, demand.other.amounts) &&
         has_labels(node.other.labels, demand.other.labels);
}

bool has_room(const NodeView& node, const ActorDemand& demand) {
  return has_in_all(node, demand) && (demand.gpu_e4 == 0 || deal_gpus(node.gpus, demand.gpu_e4).has_value());
}

}  // namespace

std::string NodeIndex::wanted(const ActorDemand& demand) {
  const std::string cpus = format_cpus(demand.cpu_e4) + " CPU";
  const std::string other = format_other(demand.other);
  std::string text = demand.gpu_e4 > 0 ? format_gpus(demand.gpu_e4) : "";
  if (demand.cpu_e4 > 0 || (text.empty() && other.empty())) text += (text.empty() ? "" : " and ") + cpus;
  return text + (text.empty() || other.empty() ? "" : ", ") + other;
}

bool NodeIndex::Use::operator<(const Use& other) const {
  const std::int64_t left = used_e4 * other.cpu_e4;
  const std::int64_t right = other.used_e4 * cpu_e4;
  if (left != right) return left < right;
  if (actors != other.actors) return actors < other.actors;
  return id < other.id;
}

/// A node without CPUs counts as full, so that uses can be compared.
NodeIndex::Use NodeIndex::use_of(const NodeView& node) {
  if (node.cpu_e4 == 0) return {1, 1, node.actors, node.id};
  return {node.cpu_used_e4, node.cpu_e4, node.actors, node.id};
}

void NodeIndex::set(NodeView node) {
  TROUPE_ASSERT(node.cpu_e4 >= 0 && node.cpu_e4 <= kMaxCpu_e4, "a node's CPUs were checked at the door");
  TROUPE_ASSERT(node.cpu_used_e4 >= 0 && node.cpu_used_e4 <= kMaxCpu_e4, "actors hold what a node had");
  const auto at = nodes_.find(node.id);
  if (at != nodes_.end()) forget(at->second);
  ++sizes_[node.cpu_e4];
  if (!node.gpus.empty()) with_gpus_.insert(node.id);
  if (!node.suspect && free_cpu(node) >= 0) {
    by_use_.insert(use_of(node), free_cpu(node));
    by_free_.insert(free_on(node, false), 0);
  }
  for (auto& [name, walk] : by_name_) add(node, name, walk);
  nodes_.insert_or_assign(node.id, std::move(node));
}

void NodeIndex::remove(NodeId node) {
  const auto at = nodes_.find(node);
  if (at == nodes_.end()) return;
  forget(at->second);
  nodes_.erase(at);
  had_nodes_ = true;
}

std::string NodeIndex::why_empty() const {
  return had_nodes_ ? "no " + noun_ + " is left: those that had joined drain, have left or died"
                    : "no " + noun_ + " has joined yet";
}

void NodeIndex::forget(const NodeView& node) {
  by_use_.erase(use_of(node));
  by_free_.erase(free_on(node, false));
  for (auto& [name, walk] : by_name_) walk.erase(free_on(node, name == kGpus));
  with_gpus_.erase(node.id);
  const auto size = sizes_.find(node.cpu_e4);
  TROUPE_ASSERT(size != sizes_.end(), "every node's size is counted");
  if (--size->second == 0) sizes_.erase(size);
}

std::int64_t NodeIndex::free_of(NodeId node) const {
  const auto at = nodes_.find(node);
  if (at == nodes_.end() || at->second.suspect) return -1;
  return std::max<std::int64_t>(-1, free_cpu(at->second));
}

bool NodeIndex::fits(NodeId node, const ActorDemand& demand) const {
  const auto at = nodes_.find(node);
  return at != nodes_.end() && has_room(at->second, demand);
}

bool NodeIndex::fits(const NodeView& node, const ActorDemand& demand) {
  return has_room(node, demand);
}

bool NodeIndex::has_free_gpus(NodeId node) const {
  const auto at = nodes_.find(node);
  return at != nodes_.end() && free_gpu(at->second.gpus) > 0;
}

NodeIndex::Free NodeIndex::free_on(const NodeView& node, bool by_gpus) {
  return {by_gpus ? free_gpu(node.gpus) : 0, free_cpu(node), node.id};
}

NodeIndex::Free NodeIndex::behind(Free at) {
  if (++at.id.value == 0) ++at.cpu_e4;
  return at;
}

void NodeIndex::add(const NodeView& node, const std::string& name, WeightedSet<Free>& walk) {
  if (node.suspect || free_cpu(node) < 0) return;
  if (name == kGpus) {
    if (!node.gpus.empty()) walk.insert(free_on(node, true), free_cpu(node));
  } else if (const std::int64_t all = amount_of(node.other.amounts, name); all > 0) {
    walk.insert(free_on(node, false), all - amount_of(node.other_used, name));
  }
}

const WeightedSet<NodeIndex::Free>& NodeIndex::walk_by(const std::string& name) const {
  const auto [at, is_new] = by_name_.try_emplace(name);
  if (is_new) {
    for (const auto& [id, node] : nodes_) add(node, name, at->second);
  }
  return at->second;
}

std::vector<NodeIndex::Walk> NodeIndex::walks_for(const ActorDemand& demand, bool by_gpus) const {
  if (by_gpus) return {{&walk_by(kGpus), demand.cpu_e4}};
  std::vector<Walk> walks;
  for (const ResourceAmount& one : demand.other.amounts) {
    const auto has_it = [&](const auto& node) { return amount_of(node.second.other.amounts, one.name) > 0; };
    if (!by_name_.contains(one.name) && std::none_of(nodes_.begin(), nodes_.end(), has_it))
      return {};  // a name that somebody made up: it is not kept
    // Memory last: a custom resource, which tells more, is walked over first.
    walks.insert(one.name == cluster::kMemory ? walks.end() : walks.begin(),
                 {&walk_by(one.name), one.amount});
  }
  if (walks.empty()) walks.push_back({&by_free_, 0});
  return walks;
}

const NodeView* NodeIndex::next_tightest(const ActorDemand& demand, bool by_gpus, const NodeView* after,
                                         std::size_t& looks) const {
  const std::vector<Walk> walks = walks_for(demand, by_gpus);
  const Free first = by_gpus ? Free{demand.gpu_e4, 0, {}} : Free{0, demand.cpu_e4, {}};
  Free at = after == nullptr ? first : behind(free_on(*after, by_gpus));
  std::size_t agree = 0;  // so many walks in a row have that node
  for (std::size_t i = 0; looks > 0 && !walks.empty(); i = (i + 1) % walks.size()) {
    --looks;
    const Free* found = walks[i].first_from(at);
    if (found == nullptr) return nullptr;
    agree = *found == at ? agree + 1 : 1;
    at = *found;
    if (agree < walks.size()) continue;
    const NodeView& node = nodes_.at(at.id);
    if (has_in_all(node, demand)) return &node;
    at = behind(at);
    agree = 0;
  }
  return nullptr;
}

const NodeView* NodeIndex::next_emptiest(const ActorDemand& demand, bool by_gpus, const NodeView* after,
                                         std::size_t& looks) const {
  const std::vector<Walk> walks = walks_for(demand, by_gpus);
  if (walks.empty()) return nullptr;
  const auto [walk, weight] = *std::min_element(walks.begin(), walks.end(), [](const Walk& a, const Walk& b) {
    return a.nodes->size() < b.nodes->size();
  });
  const auto first_as_free_as = [&, w = walk, least = weight](const Free* last) {
    return last == nullptr ? nullptr : w->first_from({last->gpu_e4, last->cpu_e4, {}}, least);
  };
  const auto next = [&, w = walk, least = weight](const Free& now) {
    const Free* at = w->first_from(behind(now), least);
    if (at != nullptr && at->gpu_e4 == now.gpu_e4 && at->cpu_e4 == now.cpu_e4) return at;
    return first_as_free_as(w->last_before({now.gpu_e4, now.cpu_e4, {}}, least));
  };
  const Free* at = after == nullptr ? first_as_free_as(walk->last(weight)) : next(free_on(*after, by_gpus));
  for (; at != nullptr && looks > 0; at = next(*at)) {
    const bool is_too_full =
        by_gpus ? at->gpu_e4 < std::max<std::int64_t>(1, demand.gpu_e4) : at->cpu_e4 < demand.cpu_e4;
    if (is_too_full) return nullptr;
    --looks;
    const NodeView& node = nodes_.at(at->id);
    if (has_room(node, demand)) return &node;
  }
  return nullptr;
}

bool NodeIndex::has_room_for(const ActorDemand& demand) const {
  if (demand.gpu_e4 > 0)
    return std::any_of(with_gpus_.begin(), with_gpus_.end(),
                       [&](NodeId id) { return could_hold(nodes_.at(id), demand); });
  if (demand.other.empty()) return largest() >= demand.cpu_e4;
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const auto& node) { return could_hold(node.second, demand); });
}

Placement NodeIndex::place(const ActorDemand& demand) const {
  TROUPE_ASSERT(demand.cpu_e4 >= 0 && demand.cpu_e4 <= kMaxCpu_e4, "a demand was checked at the door");
  if (demand.affinity) return only_there(demand);
  if (demand.gpu_e4 > 0) return place_on_gpus(demand);
  if (!demand.other.empty()) return place_with_others(demand);
  const Use* best = demand.isolated ? by_use_.first(demand.cpu_e4) : by_use_.last(demand.cpu_e4);
  if (best == nullptr) {
    if (nodes_.empty() || largest() >= demand.cpu_e4) return {};
    return {PlacementVerdict::kNever,
            {},
            "no " + noun_ + " has " + wanted(demand) + " at all: the largest has " + format_cpus(largest())};
  }
  if (!demand.isolated) {  // the lowest id of those that are as full and have as many actors
    Use tied = *best;
    tied.id = {};
    best = by_use_.first_from(tied, demand.cpu_e4);
  }
  const NodeView& node = nodes_.at(best->id);
  return {PlacementVerdict::kPlaced, node.id,
          (demand.isolated ? "least used " + noun_ + ": " : "fullest " + noun_ + " with room: ") +
              describe(node)};
}

Placement NodeIndex::place_on_gpus(const ActorDemand& demand) const {
  const NodeView* best = nullptr;
  for (const NodeId id : with_gpus_) {
    const NodeView& node = nodes_.at(id);
    if (!has_room(node, demand)) continue;
    const std::int64_t more = best == nullptr ? -1 : free_gpu(node.gpus) - free_gpu(best->gpus);
    if (more < 0 || (more == 0 && use_of(node) < use_of(*best))) best = &node;
  }
  if (best != nullptr) {
    return {PlacementVerdict::kPlaced, best->id,
            "fewest free GPUs that suffice: " + describe_gpus(*best, demand),
            *deal_gpus(best->gpus, demand.gpu_e4)};
  }
  if (nodes_.empty() || has_room_for(demand)) return {};
  if (!demand.other.empty()) return {PlacementVerdict::kNever, {}, why_never(demand)};
  std::size_t most = 0;
  for (const NodeId id : with_gpus_) most = std::max(most, nodes_.at(id).gpus.size());
  return {PlacementVerdict::kNever,
          {},
          "no " + noun_ + " has " + wanted(demand) + " at all: " +
              (most == 0 ? "none has a GPU" : "the most GPUs of one are " + std::to_string(most))};
}

Placement NodeIndex::place_with_others(const ActorDemand& demand) const {
  const NodeView* best = demand.isolated ? least_used_with(demand) : fullest_with(demand);
  if (best != nullptr) {
    const std::string what = demand.isolated ? "least used " + noun_ : "fullest " + noun_;
    return {PlacementVerdict::kPlaced, best->id,
            what + " that has " + wanted(demand) + ": " + describe(*best, demand)};
  }
  if (nodes_.empty() || has_room_for(demand)) return {};
  return {PlacementVerdict::kNever, {}, why_never(demand)};
}

/// Most often one of the first that have the CPUs.
const NodeView* NodeIndex::least_used_with(const ActorDemand& demand) const {
  for (const Use* at = by_use_.first(demand.cpu_e4); at != nullptr;) {
    const NodeView& node = nodes_.at(at->id);
    if (has_room(node, demand)) return &node;
    Use next = *at;
    if (++next.id.value == 0) ++next.actors;
    at = by_use_.first_from(next, demand.cpu_e4);
  }
  return nullptr;
}

const NodeView* NodeIndex::fullest_with(const ActorDemand& demand) const {
  const NodeView* best = nullptr;
  for (const auto& [id, node] : nodes_) {
    if (free_cpu(node) < 0 || !has_room(node, demand)) continue;
    if (best != nullptr) {
      Use most = use_of(*best), other = use_of(node);
      most.id = other.id = {};
      if (!(most < other)) continue;
    }
    best = &node;
  }
  return best;
}

/// REQUIRES: !has_room_for(demand), and it asks for more than CPUs and GPUs.
std::string NodeIndex::why_never(const ActorDemand& demand) const {
  const std::string no = "no " + noun_ + " has ";
  for (const cluster::Label& label : demand.other.labels) {
    if (std::none_of(nodes_.begin(), nodes_.end(),
                     [&](const auto& node) { return has_labels(node.second.other.labels, {label}); }))
      return no + "the label " + label.key + "=" + label.value;
  }
  for (const ResourceAmount& one : demand.other.amounts) {
    std::int64_t most = 0;
    for (const auto& [id, node] : nodes_) most = std::max(most, amount_of(node.other.amounts, one.name));
    if (most >= one.amount) continue;
    if (most == 0) return no + (one.name == cluster::kMemory ? "memory to give" : "resource " + one.name);
    return no + format_amount(one) + " at all: the most of one is " + format_amount({one.name, most});
  }
  return no + wanted(demand) + " at all" + (demand.other.labels.empty() ? "" : " together");
}

Placement NodeIndex::only_there(const ActorDemand& demand) const {
  const auto at = nodes_.find(demand.affinity);
  if (at == nodes_.end()) {
    return {PlacementVerdict::kNever,
            {},
            "it must run on node " + to_string(demand.affinity) +
                ", which is not a live node of this cluster, or leaves it"};
  }
  const NodeView& node = at->second;
  if (!could_hold(node, demand)) {
    return {PlacementVerdict::kNever,
            {},
            "it must run on " + node.name + ", which has no " + wanted(demand) +
                " at all: " + describe(node, demand)};
  }
  if (!has_room(node, demand)) return {};
  Placement placed{PlacementVerdict::kPlaced, node.id, "it must run on " + node.name};
  if (demand.gpu_e4 > 0) placed.gpus = *deal_gpus(node.gpus, demand.gpu_e4);
  return placed;
}

std::string NodeIndex::why_waits(const ActorDemand& demand) const {
  if (nodes_.empty()) return why_empty();
  if (const auto at = nodes_.find(demand.affinity); at != nodes_.end())
    return "it must run on " + at->second.name + ", and " + describe(at->second, demand) +
           (demand.other.empty() && demand.gpu_e4 == 0 ? " CPU" : "");
  return "no " + noun_ + " has " + wanted(demand) + " free: " + list_free(demand);
}

std::string NodeIndex::why_waits_for_cpus(const ActorDemand& demand) const {
  if (nodes_.empty()) return why_empty();
  const std::string most = std::string("the largest has ") + format_cpus(largest());
  if (largest() < demand.cpu_e4) return "no " + noun_ + " has " + wanted(demand) + ": " + most;
  const std::string free = format_cpus(std::max<std::int64_t>(0, most_free()));
  return "no " + noun_ + " has " + wanted(demand) + " free: " + most +
         ", and the most that are free on one are " + free;
}

std::string NodeIndex::list_free(const ActorDemand& demand, bool on_one) const {
  const bool gpus = demand.gpu_e4 > 0;
  std::vector<const NodeView*> nearest;  // to having room
  for (const auto& [id, node] : nodes_) {
    const bool has_other =
        demand.other.empty() ||
        (on_one ? could_hold(node, demand) : share_resource(demand.other.amounts, node.other.amounts));
    if ((!gpus || !node.gpus.empty()) && has_other) nearest.push_back(&node);
  }
  const std::size_t named = std::min(kNearestNamed, nearest.size());
  const auto free = [&](const NodeView* node) { return gpus ? free_gpu(node->gpus) : free_cpu(*node); };
  std::partial_sort(nearest.begin(), nearest.begin() + static_cast<std::ptrdiff_t>(named), nearest.end(),
                    [&](const NodeView* a, const NodeView* b) {
                      return free(a) != free(b) ? free(a) > free(b) : a->id < b->id;
                    });
  std::string list;
  for (std::size_t i = 0; i < named; ++i) list += (i == 0 ? "" : ", ") + describe(*nearest[i], demand);
  if (nearest.size() > named)
    list += ", and " + count_of(static_cast<std::int64_t>(nearest.size() - named), noun_) + " with less";
  if (nearest.empty()) return demand.other.empty() ? "none has a GPU" : "none has that in all";
  return list;
}

}  // namespace troupe::scheduler
