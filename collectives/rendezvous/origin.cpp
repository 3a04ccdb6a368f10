#include "collectives/rendezvous/origin.hpp"

#include <algorithm>

#include "collectives/normal_end.hpp"
#include "collectives/texts.hpp"

namespace troupe::collectives {
namespace {

/// Ranks in ascending order, each once.
std::vector<int> checked(std::vector<int> ranks, int size) {
  std::sort(ranks.begin(), ranks.end());
  const bool twice = std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
  if (!ranks.empty() && !twice && ranks.front() >= 0 && ranks.back() < size) return ranks;
  throw BadConfig("cannot make a group of the ranks " + (ranks.empty() ? "of an empty list" : listed(ranks)),
                  twice ? "one is there twice" : "this group has the ranks 0 to " + std::to_string(size - 1),
                  "list at least one rank of this group, and each once");
}

}  // namespace

WorldOrigin::WorldOrigin(std::shared_ptr<World> world, const ProcessGroup& group, std::vector<int> members)
    : world_(std::move(world)),
      prefix_("group/" + to_string(group.generation()) + "/"),
      members_(std::move(members)) {}

std::shared_ptr<ProcessGroup> WorldOrigin::new_group(ProcessGroup& parent, const std::vector<int>& ranks) {
  // Counted first: a rank that is refused here stays in step with those that are not.
  const std::string number = std::to_string(made_++);
  const auto ordered = checked(ranks, parent.size());
  if (!std::binary_search(ordered.begin(), ordered.end(), parent.rank())) return nullptr;
  std::vector<int> members;
  members.reserve(ordered.size());
  for (const int r : ordered) members.push_back(members_[static_cast<std::size_t>(r)]);
  const std::string purpose = "cannot form a group of the ranks " + listed(members);
  return world_->form({.key = prefix_ + "new/" + number + "/",
                       .members = std::move(members),
                       .parent = &parent,
                       .name = parent.facts().name + "/" + number,
                       .purpose = purpose});
}

std::shared_ptr<ProcessGroup> WorldOrigin::rebuild(ProcessGroup& parent) {
  // The others may still be in an operation.
  parent.abort("rank " + std::to_string(parent.rank()) + " " + kFormsNext);
  while (true) {
    if (const int number = world_->wait_for_store(store_, world_->timeout()); number != store_) {
      store_ = number;
      attempts_ = 0;
    }
    try {
      if (auto group = try_to_rebuild(parent)) return group;
    } catch (const Unavailable&) {
      // Of the store that went, or is going; or it is what another rank said of itself.
      if (world_->has_store(store_)) throw;
      (void)world_->wait_for_store(store_ + 1, world_->timeout());
    }
  }
}

/// Null: somebody died meanwhile.
std::shared_ptr<ProcessGroup> WorldOrigin::try_to_rebuild(ProcessGroup& parent) {
  const std::string attempt = std::to_string(store_) + "/" + std::to_string(attempts_++);
  try {
    return world_->form({.key = prefix_ + "next/" + attempt + "/",
                         .members = members_,
                         .survivors = true,
                         .store = store_,  // not the next one: the key is of this
                         .parent = &parent,
                         .name = parent.facts().name,
                         .purpose = "cannot form the next generation of the ranks " + listed(members_)});
  } catch (const CollectiveAborted&) {
    return nullptr;  // every member got this: once more, without who died
  }
}

}  // namespace troupe::collectives
