#include "actors/train/driver/recovery.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace troupe::train {
namespace {

/// Enough members of the last generation hold a state, and the newest committed one is among these.
bool enough_hold_a_state(const std::vector<Holding>& all, const RecoveryInput& input) {
  int holders = 0;
  std::int64_t newest = kNoState;
  for (const Holding& one : all) {
    if (!one.known || one.killed || one.rank < 0 || one.steps == kNoState) continue;
    ++holders;
    newest = std::max(newest, one.steps);
  }
  return holders >= input.min_trainers && newest >= input.committed;
}

/// Null if nobody holds a state.
const Holding* find_authority(const std::vector<Holding>& all) {
  const Holding* authority = nullptr;
  for (const Holding& one : all) {
    if (!one.known || one.steps == kNoState) continue;
    if (authority == nullptr ||
        std::pair(one.steps, one.lineage) > std::pair(authority->steps, authority->lineage))
      authority = &one;
  }
  return authority;
}

/// Who becomes a member of a generation that begins from a given state.
class Dealing {
 public:
  Dealing(const std::vector<Holding>& all, const RecoveryInput& input, Recovery& plan)
      : all_(all), input_(input), plan_(plan), from_members_(plan.lineage != input.generation) {}

  void run() {
    const Holding* source = nullptr;
    for (const Holding& one : all_) {
      if (one.actor == input_.source && one.rank >= 0 && has_the_state(one)) source = &one;
    }
    std::vector<const Holding*> order = choose(source);
    const auto writer =
        std::find_if(order.begin(), order.end(), [](const Holding* one) { return one->has_folder; });
    if (writer != order.end()) std::rotate(order.begin(), writer, std::next(writer));
    const bool source_stays = std::find(order.begin(), order.end(), source) != order.end();
    for (std::size_t r = 0; r < order.size(); ++r) {
      const Holding& one = *order[r];
      const int rank = static_cast<int>(r);
      const bool holds = from_members_ && has_the_state(one);
      plan_.members.push_back({one.actor, holds});
      if (from_members_ && !holds)
        (source_stays && can_follow_up(one) ? plan_.followers : plan_.receivers).push_back(rank);
      if (holds && (plan_.source < 0 || one.actor == input_.source)) plan_.source = rank;
    }
  }

 private:
  bool has_the_state(const Holding& one) const {
    return one.known && one.steps == plan_.first_step && one.lineage == plan_.lineage;
  }
  /// It has an earlier state of the lineage, and its source, which must be a member, has what came since.
  bool can_follow_up(const Holding& one) const {
    return one.follows && one.known && one.steps != kNoState && one.steps < plan_.first_step &&
           one.lineage == plan_.lineage;
  }
  bool needs_nothing(const Holding& one) const { return !from_members_ || has_the_state(one); }

  /// In the order of ranks.
  std::vector<const Holding*> choose(const Holding* source) const {
    std::vector<const Holding*> order, outside;
    for (const Holding& one : all_) {
      const bool needs_a_copy =
          from_members_ && one.rank < 0 && !has_the_state(one) && (source == nullptr || !can_follow_up(one));
      (!one.known || needs_a_copy ? outside : order).push_back(&one);
    }
    const bool too_few = static_cast<int>(order.size()) < input_.min_trainers;
    if (too_few || input_.waits_for_copies || input_.sharded)
      std::copy_if(outside.begin(), outside.end(), std::back_inserter(order),
                   [](const Holding* one) { return one->known; });
    const auto place = [](const Holding* one) {
      return std::pair(one->rank < 0 ? INT32_MAX : one->rank, one->arrival);
    };
    std::sort(order.begin(), order.end(),
              [&](const Holding* a, const Holding* b) { return place(a) < place(b); });
    return without_leaving(std::move(order));
  }

  /// Cut to those that become members. Who leaves is one if there are too few others, or if nobody else has
  /// the state: it passes that on, and goes after the next step.
  std::vector<const Holding*> without_leaving(std::vector<const Holding*> order) const {
    const auto stays = [](const Holding* one) { return !one->leaves; };
    const auto holds = [this](const Holding* one) { return needs_nothing(*one); };
    std::stable_partition(order.begin(), order.end(), stays);
    const bool may_go =
        std::count_if(order.begin(), order.end(), stays) >= input_.min_trainers &&
        std::any_of(order.begin(), order.end(), [&](const Holding* one) { return stays(one) && holds(one); });
    const std::vector<const Holding*> all = order;
    if (may_go) std::erase_if(order, [](const Holding* one) { return one->leaves; });
    cut(order, static_cast<std::size_t>(input_.trainers));
    if (std::any_of(order.begin(), order.end(), holds)) return order;
    const auto holder = std::find_if(all.begin(), all.end(), holds);
    if (holder == all.end()) return order;
    if (static_cast<int>(order.size()) >= input_.logical_ranks) order.pop_back();
    order.push_back(*holder);
    return order;
  }

  /// To so many. Of those that see the checkpoints the first stays: it becomes rank 0.
  static void cut(std::vector<const Holding*>& order, std::size_t wanted) {
    if (order.size() <= wanted) return;
    const auto first =
        std::find_if(order.begin(), order.end(), [](const Holding* one) { return one->has_folder; });
    if (first != order.end() && first - order.begin() >= static_cast<std::ptrdiff_t>(wanted))
      std::rotate(order.begin(), first, std::next(first));
    order.resize(wanted);
  }

  const std::vector<Holding>& all_;
  const RecoveryInput& input_;
  Recovery& plan_;
  bool from_members_;  ///< a member gives the state to who lacks it
};

}  // namespace

bool can_plan(const std::vector<Holding>& all, const RecoveryInput& input) {
  const bool enough = !input.sharded && enough_hold_a_state(all, input);
  return std::all_of(all.begin(), all.end(), [&](const Holding& one) {
    return !one.killed && (one.known || (enough && one.rank < 0 && !one.joins));
  });
}

Recovery plan_recovery(const std::vector<Holding>& all, const RecoveryInput& input) {
  Recovery plan{.first_step = input.saved, .lineage = input.generation};
  const Holding* authority = find_authority(all);
  if (authority != nullptr && (authority->steps >= input.committed || authority->steps >= input.saved)) {
    plan.first_step = authority->steps;
    plan.lineage = authority->lineage;
  }
  Dealing(all, input, plan).run();
  return plan;
}

}  // namespace troupe::train
