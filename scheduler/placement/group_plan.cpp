#include "scheduler/placement/group_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/count.hpp"
#include "scheduler/placement/group_needs.hpp"

namespace troupe::scheduler {
namespace {

using cluster::ActorDemand;
using cluster::BundleDemand;
using cluster::GpuUse;
using cluster::GroupSpec;
using cluster::kGpu;
using cluster::NodeView;
using cluster::PlacedBundle;

// Looks at nodes after which a search is cut off.
constexpr std::size_t kMostLooks = 50'000;         ///< over all nodes, beyond those of its first descent
constexpr std::size_t kMostLooksOnOne = 10'000;    ///< on one node
constexpr std::size_t kMostLooksOnEach = 200'000;  ///< on one node after the other, in all
constexpr std::size_t kMostLooksToMatch = 1'000'000;
constexpr std::size_t kMostQuickLooks = 4'000;  ///< before a look at every node
constexpr std::size_t kNamed = 4;               ///< nodes in a sentence

/// A node that takes new bundles.
struct Host {
  const NodeView* view = nullptr;
  std::int64_t free_cpu = 0;
  GpuUse gpus;
  int bundles = 0;                 ///< of this group
  Amounts others{};                ///< that are free
  std::vector<bool> has_labels{};  ///< by number of the set of labels

  bool is_like(const Host& other) const {
    return free_cpu == other.free_cpu && gpus == other.gpus && others == other.others &&
           has_labels == other.has_labels;
  }
  void take(const Need& bundle, const std::vector<std::uint32_t>& which, int sign) {
    free_cpu -= sign * bundle.cpu_e4;
    bundles += sign;
    for (std::size_t i = 0; i < others.size(); ++i) others[i] -= sign * bundle.others[i];
    for (const std::uint32_t gpu : which) gpus[gpu] += sign * cluster::held_of_each(bundle.gpu_e4);
  }
};

bool has_others(const Host& host, const Need& bundle) {
  for (std::size_t i = 0; i < host.others.size(); ++i) {
    if (host.others[i] < bundle.others[i]) return false;
  }
  return bundle.labels == kNoLabels || host.has_labels[bundle.labels];
}

bool has_room(const Host& host, const Need& bundle) {
  if (host.free_cpu < bundle.cpu_e4 || !has_others(host, bundle)) return false;
  return bundle.gpu_e4 == 0 || cluster::deal_gpus(host.gpus, bundle.gpu_e4).has_value();
}

/// How many such bundles there is room for, at most `most`.
std::int64_t count_with_room(const Host& host, const Need& bundle, std::int64_t most) {
  if (host.free_cpu < bundle.cpu_e4 || !has_others(host, bundle)) return 0;
  if (bundle.cpu_e4 > 0) most = std::min(most, host.free_cpu / bundle.cpu_e4);
  for (std::size_t i = 0; i < host.others.size(); ++i) {
    if (bundle.others[i] > 0) most = std::min(most, host.others[i] / bundle.others[i]);
  }
  if (bundle.gpu_e4 == 0) return most;
  std::int64_t parts = 0, whole = 0;
  for (const std::int64_t held : host.gpus) {
    if (bundle.gpu_e4 < kGpu) parts += std::max<std::int64_t>(0, kGpu - held) / bundle.gpu_e4;
    whole += held == 0 ? 1 : 0;
  }
  return std::min(most, bundle.gpu_e4 < kGpu ? parts : whole * kGpu / bundle.gpu_e4);
}

/// The GPUs that a bundle could get there, in the order in which they are tried. A part of a GPU may go to
/// any one that has room: what is the same of two of them is tried once. REQUIRES: has_room.
std::vector<std::vector<std::uint32_t>> deals(const Host& host, const Need& bundle) {
  if (bundle.gpu_e4 == 0) return {{}};
  const auto best = cluster::deal_gpus(host.gpus, bundle.gpu_e4);
  std::vector<std::vector<std::uint32_t>> all{*best};
  if (bundle.gpu_e4 >= kGpu) return all;
  std::set<std::int64_t> seen{host.gpus[best->front()]};
  for (std::uint32_t gpu = 0; gpu < host.gpus.size(); ++gpu) {
    if (host.gpus[gpu] + bundle.gpu_e4 <= kGpu && seen.insert(host.gpus[gpu]).second) all.push_back({gpu});
  }
  return all;
}

/// "PACK on 2 nodes: a, b".
std::string reason_of(const GroupSpec& spec, const std::vector<PlacedBundle>& placed,
                      const NodeIndex& nodes) {
  std::set<NodeId> on;
  std::string list;
  for (const PlacedBundle& bundle : placed) {
    if (!on.insert(bundle.node).second || on.size() > kNamed) continue;
    const auto at = nodes.nodes().find(bundle.node);
    list +=
        (list.empty() ? "" : ", ") + (at == nodes.nodes().end() ? to_string(bundle.node) : at->second.name);
  }
  if (on.size() > kNamed) list += ", ...";
  return std::string(name_of(spec.strategy)) + " on " +
         count_of(static_cast<std::int64_t>(on.size()), "node") + ": " + list;
}

class Planner {
 public:
  /// `only`: if not null, no other node takes new bundles.
  Planner(const GroupSpec& spec, const std::vector<PlacedBundle>& kept, const NodeIndex& nodes,
          const NodeView* only = nullptr)
      : spec_(spec), nodes_(nodes), needs_(spec), placed_(kept) {
    std::map<NodeId, int> kept_on;
    for (const PlacedBundle& bundle : kept) {
      if (bundle.node) ++kept_on[bundle.node];
    }
    if (only != nullptr) {
      add_host(*only, 0);
    } else {
      for (const auto& [id, view] : nodes.nodes()) {
        const auto here = kept_on.find(id);
        if (!view.suspect) add_host(view, here == kept_on.end() ? 0 : here->second);
      }
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i].node) order_.push_back(i);
    }
    needs_.sort(order_);
    total_ = total_of(spec, order_);
    for (const std::string& name : needs_.names)
      total_others_.push_back(amount_of(total_.other.amounts, name));
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const Need& bundle = needs_[order_[i]];
      if (i > 0 && bundle == needs_[order_[i - 1]]) continue;
      const auto needs_as_much = [&](std::size_t other) { return needs_[other].is_no_less_than(bundle); };
      kinds_.emplace_back(bundle, std::count_if(order_.begin(), order_.end(), needs_as_much));
    }
  }

  GroupPlan plan() {
    const bool found = place();
    const std::size_t looks = hosts_.size() * (1 + kinds_.size()) + looks_ + looks_before_;
    if (found) return {true, placed_, reason_of(spec_, placed_, nodes_), false, false, looks};
    std::string why = why_not();
    return {false, {}, std::move(why), was_cut_off_, is_never_, looks};
  }
  /// All bundles on one node; empty: none was found. What it cost is taken off `looks`.
  std::vector<PlacedBundle> all_on_one(std::size_t& looks) {
    const bool found = place_on_one();
    looks -= std::min(looks, looks_);
    return found ? placed_ : std::vector<PlacedBundle>();
  }

 private:
  void add_host(const NodeView& view, int bundles) {
    hosts_.push_back({&view, view.cpu_e4 - view.cpu_used_e4, view.gpus, bundles});
    Host& host = hosts_.back();
    for (const std::string& name : needs_.names)
      host.others.push_back(amount_of(view.other.amounts, name) - amount_of(view.other_used, name));
    for (const auto& labels : needs_.label_sets)
      host.has_labels.push_back(cluster::has_labels(view.other.labels, labels));
  }
  bool place() {
    if (order_.empty()) return true;
    if (hosts_.empty()) return false;
    switch (spec_.strategy) {
      case PlacementStrategy::kStrictSpread:
        return match();
      case PlacementStrategy::kStrictPack:
        return place_on_one();
      case PlacementStrategy::kPack:
        return (order_.size() == placed_.size() && place_on_one()) || search_all();
      case PlacementStrategy::kSpread:
        return search_all();
    }
    return false;
  }

  bool search_all() {
    all_.clear();
    for (Host& host : hosts_) all_.push_back(&host);
    return has_enough(all_) && search(kMostLooks + 2 * order_.size() * all_.size());
  }

  bool place_on_one() {
    std::vector<Host*> fits;
    NodeId bound{};
    for (const PlacedBundle& bundle : placed_) {
      if (bundle.node) bound = bundle.node;
    }
    for (Host& host : hosts_) {
      if ((!bound || host.view->id == bound) && has_enough({&host})) fits.push_back(&host);
    }
    const auto size = [&](const Host* host) {
      return std::tuple(total_.gpu_e4 > 0 ? cluster::free_gpu(host->gpus) : 0, host->free_cpu,
                        host->view->id);
    };
    std::sort(fits.begin(), fits.end(), [&](const Host* a, const Host* b) { return size(a) < size(b); });
    std::size_t looks = 0;
    const Host* before = nullptr;
    for (Host* host : fits) {
      if (before != nullptr && before->is_like(*host)) continue;
      before = host;
      if (looks > kMostLooksOnEach) {
        was_cut_off_ = true;
        return false;
      }
      all_ = {host};
      if (search(kMostLooksOnOne)) return true;
      looks += looks_;
    }
    return false;
  }

  /// Whether these have as much as all bundles together ask for, and room for as many of each kind as ask for
  /// that or more: if not there is no placement, and if all bundles are alike there is one.
  bool has_enough(const std::vector<Host*>& hosts) const {
    std::int64_t cpu_e4 = 0, gpu_e4 = 0;
    for (const Host* host : hosts) {
      cpu_e4 += std::max<std::int64_t>(0, host->free_cpu);
      gpu_e4 += cluster::free_gpu(host->gpus);
    }
    if (cpu_e4 < total_.cpu_e4 || gpu_e4 < total_.gpu_e4) return false;
    for (std::size_t i = 0; i < total_others_.size(); ++i) {
      std::int64_t free = 0;
      for (const Host* host : hosts) free += std::max<std::int64_t>(0, host->others[i]);
      if (free < total_others_[i]) return false;
    }
    return std::all_of(kinds_.begin(), kinds_.end(), [&](const auto& kind) {
      std::int64_t lacks = kind.second;
      for (auto host = hosts.begin(); lacks > 0 && host != hosts.end(); ++host)
        lacks -= count_with_room(**host, kind.first, lacks);
      return lacks == 0;
    });
  }

  /// Looks for a placement on all_.
  bool search(std::size_t most_looks) {
    looks_before_ += std::exchange(looks_, 0);
    most_looks_ = most_looks;
    return search(0, all_);
  }

  /// Places order_[at] and all behind it, or nothing. Of bundles that are alike, what one was tried on in
  /// vain is nothing for those behind it: to swap two of them makes no other placement.
  bool search(std::size_t at, const std::vector<Host*>& hosts) {
    if (at == order_.size()) return true;
    const Need& bundle = needs_[order_[at]];
    const bool next_is_like = at + 1 < order_.size() && needs_[order_[at + 1]] == bundle;
    std::vector<Host*> left;
    for (Host* host : hosts) {
      if (has_room(*host, bundle)) left.push_back(host);
    }
    looks_ += hosts.size();
    std::vector<Host> tried;  // as they were
    while (!left.empty()) {
      if (looks_ > most_looks_) {
        was_cut_off_ = true;
        return false;
      }
      looks_ += left.size();
      const auto best = std::min_element(left.begin(), left.end(),
                                         [&](const Host* a, const Host* b) { return is_before(*a, *b); });
      Host& host = **best;
      if (std::none_of(tried.begin(), tried.end(), [&](const Host& one) { return one.is_like(host); })) {
        tried.push_back(host);
        for (const auto& gpus : deals(host, bundle)) {
          host.take(bundle, gpus, 1);
          placed_[order_[at]] = {host.view->id, gpus};
          if (search(at + 1, next_is_like ? left : all_)) return true;
          placed_[order_[at]] = {};
          host.take(bundle, gpus, -1);
        }
      }
      left.erase(best);
    }
    return false;
  }

  bool is_before(const Host& a, const Host& b) const {
    const bool spreads = spec_.strategy == PlacementStrategy::kSpread;
    if (a.bundles != b.bundles) return spreads ? a.bundles < b.bundles : a.bundles > b.bundles;
    const auto free = [&](const Host& host) {
      return std::pair(total_.gpu_e4 > 0 ? cluster::free_gpu(host.gpus) : 0, host.free_cpu);
    };
    return free(a) != free(b) ? free(a) > free(b) : a.view->id < b.view->id;
  }

  /// Each bundle takes the emptiest node that is left, and where none is, has another one move.
  bool match() {
    Matching matching;
    for (Host& host : hosts_) {
      if (host.bundles == 0) matching.nodes.push_back(&host);
    }
    std::sort(matching.nodes.begin(), matching.nodes.end(),
              [&](const Host* a, const Host* b) { return is_before(*a, *b); });
    matching.of.resize(matching.nodes.size());
    for (std::size_t i = 0; i < matching.nodes.size(); ++i) matching.left.insert(matching.left.end(), i);
    looks_ = 0;
    most_looks_ = kMostLooksToMatch;
    for (const std::size_t bundle : order_) {
      matching.asked.assign(matching.nodes.size(), false);
      matching.in_vain.clear();
      if (!seat(matching, bundle)) return false;
      ++matched_;
    }
    for (std::size_t i = 0; i < matching.of.size(); ++i) {
      const auto bundle = matching.of[i];
      const Host& host = *matching.nodes[i];
      if (bundle) placed_[*bundle] = {host.view->id, deals(host, needs_[*bundle]).front()};
    }
    return true;
  }

  struct Matching {
    std::vector<Host*> nodes;                    ///< the emptiest first
    std::vector<std::optional<std::size_t>> of;  ///< by node: its bundle
    std::set<std::size_t> left;                  ///< nodes without one
    // While one bundle looks for its node.
    std::vector<bool> asked;    ///< by node: its bundle looks for another one, or has in vain
    std::vector<Need> in_vain;  ///< for these no node is left
  };

  bool seat(Matching& m, std::size_t bundle) {
    const Need& demand = needs_[bundle];
    const auto fits = [&](std::size_t i) {
      was_cut_off_ = was_cut_off_ || ++looks_ > most_looks_;
      return has_room(*m.nodes[i], demand);
    };
    const bool is_in_vain = std::any_of(m.in_vain.begin(), m.in_vain.end(),
                                        [&](const Need& less) { return demand.is_no_less_than(less); });
    if (!is_in_vain) {
      const auto free =
          std::find_if(m.left.begin(), m.left.end(), [&](std::size_t i) { return was_cut_off_ || fits(i); });
      if (was_cut_off_) return false;
      if (free != m.left.end()) {
        m.of[*free] = bundle;
        m.left.erase(free);
        return true;
      }
      m.in_vain.push_back(demand);
    }
    for (std::size_t i = 0; i < m.nodes.size() && !was_cut_off_; ++i) {
      if (m.asked[i] || !m.of[i] || !fits(i)) continue;
      m.asked[i] = true;
      if (!seat(m, *m.of[i])) continue;
      m.of[i] = bundle;
      return true;
    }
    return false;
  }

  /// Also sets is_never_.
  std::string why_not() {
    if (nodes_.nodes().empty()) return nodes_.why_empty();
    const std::string strategy = name_of(spec_.strategy);
    const std::string all =
        spec_.bundles.size() == 1 ? "its bundle" : "all " + std::to_string(spec_.bundles.size()) + " bundles";
    const auto of = [](std::size_t bundle) { return "bundle " + std::to_string(bundle) + ": "; };
    const auto is_like_one_before = [&](std::size_t at) {  // a look at every node with GPUs each
      return at > 0 && spec_.bundles[order_[at]] == spec_.bundles[order_[at - 1]];
    };
    for (std::size_t at = 0; at < order_.size(); ++at) {
      if (is_like_one_before(at)) continue;
      const std::size_t i = order_[at];
      const auto alone = nodes_.place(demand_of(spec_.bundles[i]));
      is_never_ = alone.verdict == cluster::PlacementVerdict::kNever;
      if (is_never_) return of(i) + alone.reason;
    }
    const bool packs = spec_.strategy == PlacementStrategy::kStrictPack;
    const bool spreads = spec_.strategy == PlacementStrategy::kStrictSpread;
    is_never_ = (packs && !nodes_.has_room_for(demand_of(total_))) ||
                (spreads && nodes_.nodes().size() < placed_.size());
    for (std::size_t at = 0; at < order_.size() && !is_never_; ++at) {
      if (is_like_one_before(at)) continue;
      const std::size_t i = order_[at];
      const ActorDemand demand = demand_of(spec_.bundles[i]);
      if (hosts_.empty() || nodes_.place(demand).verdict != cluster::PlacementVerdict::kPlaced)
        return of(i) + nodes_.why_waits(demand);
    }
    ActorDemand total = demand_of(total_);
    if (!packs) total.other.labels.clear();  // each bundle's own, of whichever node
    const std::string list = nodes_.list_free(total, packs);
    const std::string free = NodeIndex::wanted(total) + ": " + list;
    if (was_cut_off_ && !is_never_)
      return "no place for " + all + " was found before the search was cut off (" + strategy +
             "; it is tried again): they ask for " + free;
    if (packs) {
      return strategy + " wants " + all + " on one node, and none has " + (is_never_ ? "" : "free ") + free +
             (is_never_ ? "; it waits for a node that has it" : "");
    }
    if (spreads) {
      const std::string wants = strategy + " wants a node for each of " + all + ", and ";
      if (is_never_)
        return wants + "the cluster has " +
               count_of(static_cast<std::int64_t>(nodes_.nodes().size()), "node") + "; it waits for more";
      return wants + "there is room for " + std::to_string(placed_.size() - order_.size() + matched_) + " (" +
             count_of(static_cast<std::int64_t>(hosts_.size()), "node") + "): " + list;
    }
    return all + " do not fit at a time: they ask for " + free;
  }

  const GroupSpec& spec_;
  const NodeIndex& nodes_;
  const Needs needs_;
  std::vector<PlacedBundle> placed_;
  std::vector<Host> hosts_;
  std::vector<std::size_t> order_;                    ///< bundles to be placed, the largest first
  BundleDemand total_;                                ///< of those
  Amounts total_others_;                              ///< the same of what has a number
  std::vector<std::pair<Need, std::int64_t>> kinds_;  ///< and how many ask for as much or more
  std::vector<Host*> all_;                            ///< that the search may use
  std::size_t looks_ = 0;                             ///< of this search
  std::size_t looks_before_ = 0;                      ///< of those before it
  std::size_t most_looks_ = 0;
  bool was_cut_off_ = false;
  bool is_never_ = false;
  std::size_t matched_ = 0;
};

/// What the Planner finds, without a look at every node: all on the tightest node that has room for all, or,
/// the largest first, each on the emptiest node that is left and has room for it. None: that is for the
/// Planner.
class QuickPlanner {
 public:
  QuickPlanner(const GroupSpec& spec, const std::vector<PlacedBundle>& kept, const NodeIndex& nodes)
      : spec_(spec), kept_(kept), nodes_(nodes), placed_(kept) {
    for (std::size_t i = 0; i < kept.size(); ++i) order_.push_back(i);
    total_ = demand_of(total_of(spec, order_));
  }

  std::optional<GroupPlan> plan() {
    if (order_.empty() || std::any_of(kept_.begin(), kept_.end(), [](const auto& b) { return b.node; }))
      return std::nullopt;
    const bool packs =
        spec_.strategy == PlacementStrategy::kPack || spec_.strategy == PlacementStrategy::kStrictPack;
    if (!(packs ? place_on_one() : place_on_one_each())) return std::nullopt;
    return GroupPlan{true,  placed_, reason_of(spec_, placed_, nodes_),
                     false, false,   kMostQuickLooks - looks_};
  }

 private:
  bool place_on_one() {
    const bool by_gpus = total_.gpu_e4 > 0;
    for (const NodeView* node = nullptr;;) {
      node = nodes_.next_tightest(total_, by_gpus, node, looks_);
      if (node == nullptr) return false;
      for (PlacedBundle& bundle : placed_) bundle.node = node->id;
      if (!by_gpus) return true;
      placed_ = Planner(spec_, kept_, nodes_, node).all_on_one(looks_);
      if (!placed_.empty()) return true;
      placed_ = kept_;
    }
  }

  bool place_on_one_each() {
    Needs(spec_).sort(order_);
    // Of bundles of CPUs alone no node before the last one has room for the next: it is taken.
    const bool is_in_order = total_.gpu_e4 == 0 && total_.other.empty();
    std::set<NodeId> taken;
    const NodeView* node = nullptr;
    for (std::size_t at = 0; at < order_.size(); ++at) {
      const BundleDemand& bundle = spec_.bundles[order_[at]];
      // Nor has it for one that is like the one before.
      if (!is_in_order && at > 0 && !(bundle == spec_.bundles[order_[at - 1]])) node = nullptr;
      const ActorDemand demand = demand_of(bundle);
      do {
        node = nodes_.next_emptiest(demand, total_.gpu_e4 > 0, node, looks_);
        if (node == nullptr) return false;
      } while (!taken.insert(node->id).second);
      PlacedBundle& placed = placed_[order_[at]];
      placed.node = node->id;
      if (bundle.gpu_e4 > 0) placed.gpus = *cluster::deal_gpus(node->gpus, bundle.gpu_e4);
    }
    return true;
  }

  const GroupSpec& spec_;
  const std::vector<PlacedBundle>& kept_;
  const NodeIndex& nodes_;
  std::vector<PlacedBundle> placed_;
  std::vector<std::size_t> order_;
  ActorDemand total_;
  std::size_t looks_ = kMostQuickLooks;  ///< that are left
};

}  // namespace

GroupPlan plan_group(const GroupSpec& spec, const std::vector<PlacedBundle>& kept, const NodeIndex& nodes) {
  TROUPE_ASSERT(kept.size() == spec.bundles.size(), "a bundle is placed or not");
  if (auto plan = QuickPlanner(spec, kept, nodes).plan()) return *std::move(plan);
  return plan_group_by_search(spec, kept, nodes);
}

GroupPlan plan_group_by_search(const GroupSpec& spec, const std::vector<PlacedBundle>& kept,
                               const NodeIndex& nodes) {
  return Planner(spec, kept, nodes).plan();
}

const char* name_of(PlacementStrategy strategy) {
  switch (strategy) {
    case PlacementStrategy::kPack:
      return "PACK";
    case PlacementStrategy::kSpread:
      return "SPREAD";
    case PlacementStrategy::kStrictPack:
      return "STRICT_PACK";
    case PlacementStrategy::kStrictSpread:
      return "STRICT_SPREAD";
  }
  return "?";
}

}  // namespace troupe::scheduler
