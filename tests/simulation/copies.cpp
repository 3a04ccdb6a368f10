#include "tests/simulation/copies.hpp"

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

void Copies::under_way(const objects::ObjectName& of, Hosted& by) {
  const Hosted*& maker = makers_[{by.node->info.id, of}];
  if (maker != nullptr && maker != &by && maker->alive)
    cluster_.world.violation(by.name + " and " + maker->name + " copy one object to one node at a time");
  maker = &by;
  if (std::exchange(hits_, false)) hit_this(of, by);
}

void Copies::window(std::size_t parts, const Hosted& by) {
  const std::size_t most = cluster_.scenario.object_limits.parts_under_way;
  if (parts == most) ++full_windows;
  if (parts > most)
    cluster_.world.violation(by.name + " waits for " + std::to_string(parts) + " parts of one object");
}

void Copies::ended(const objects::ObjectName& of, const Hosted& by, bool ok) {
  const auto at = makers_.find({by.node->info.id, of});
  if (at == makers_.end() || at->second != &by) return;  // it was there, or is said a second time
  makers_.erase(at);
  ++(ok ? made : failed);
}

void Copies::hit_this(const objects::ObjectName& of, Hosted& by) {
  World& world = cluster_.world;
  Node* there = cluster_.find_any_node(of.owner.node);
  if (there == nullptr || !there->locals.contains(of.owner.process)) return;
  ++hit;
  const auto what = world.random.below(4);
  Hosted* maker = &by;
  Hosted* owner = there->locals.at(of.owner.process).process;
  world.outside(world.between(Duration{0}, milliseconds(8)), "a copy is hit", [this, what, maker, owner] {
    if (what == 0) cluster_.world.kill(*maker, "it makes a copy");
    if (what == 1) cluster_.world.kill(*owner, "its object is being copied");
    if (what >= 2) cluster_.network.hosts_cut(maker->host, owner->host, cluster_.world.now());
    // Nobody hears of its death.
    if (what == 3) cluster_.world.kill(*maker, "it makes a copy, and its links broke");
  });
}

}  // namespace troupe::sim
