#include "collectives/rendezvous/origin.hpp"

#include <algorithm>
#include <sstream>

namespace troupe::collectives {
namespace {

constexpr Duration kLookAgain = std::chrono::milliseconds(10);

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

/// Ranks in ascending order, each once.
std::vector<int> checked(std::vector<int> ranks, int size) {
  std::sort(ranks.begin(), ranks.end());
  const bool twice = std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
  if (!ranks.empty() && !twice && ranks.front() >= 0 && ranks.back() < size) return ranks;
  throw BadConfig("cannot make a group of the ranks " + (ranks.empty() ? "of an empty list" : list(ranks)),
                  twice ? "one is there twice" : "this group has the ranks 0 to " + std::to_string(size - 1),
                  "list at least one rank of this group, and each once");
}

std::vector<int> parse_list(const std::string& text) {
  std::vector<int> ranks;
  std::istringstream in(text);
  char comma = 0;
  for (int r = 0; in >> r; in >> comma) ranks.push_back(r);
  return ranks;
}

}  // namespace

WorldOrigin::WorldOrigin(std::shared_ptr<World> world, const ProcessGroup& group, std::vector<int> members)
    : world_(std::move(world)),
      prefix_("group/" + to_string(group.generation()) + "/"),
      members_(std::move(members)) {}

std::shared_ptr<ProcessGroup> WorldOrigin::new_group(ProcessGroup& parent, const std::vector<int>& ranks) {
  const auto ordered = checked(ranks, parent.size());
  const std::string number = std::to_string(made_++);
  if (!std::binary_search(ordered.begin(), ordered.end(), parent.rank())) return nullptr;
  std::vector<int> members;
  members.reserve(ordered.size());
  for (const int r : ordered) members.push_back(members_[static_cast<std::size_t>(r)]);
  return world_->form(prefix_ + "new/" + number + "/", members, parent.facts().name + "/" + number,
                      "cannot form a group of the ranks " + list(members));
}

std::vector<int> WorldOrigin::agree_on_survivors(const std::string& prefix) {
  const MonotonicClock clock;
  const Instant until = clock.now() + world_->timeout();
  Store& store = world_->store();
  store.set(prefix + "here/" + std::to_string(world_->rank()), "1");
  while (true) {
    std::vector<int> here;
    std::vector<int> awaited;
    for (const int r : members_) {
      const bool gone = !world_->how_it_went(r).empty();
      const bool came = store.find(prefix + "here/" + std::to_string(r)).has_value();
      if (came && !gone) here.push_back(r);
      if (!came && !gone) awaited.push_back(r);
    }
    // The first list is the one that counts, whoever made it.
    if (awaited.empty()) return parse_list(store.set_once(prefix + "members", list(here)));
    if (auto decided = store.find(prefix + "members")) return parse_list(*decided);
    if (clock.now() >= until) {
      throw_error({ErrorCode::kTimeout, "cannot form the next generation",
                   "rank " + list(awaited) + " lives and did not call rebuild()",
                   "call rebuild() on every rank that lives, or end it"});
    }
    (void)store.find(prefix + "members", kLookAgain);
  }
}

std::shared_ptr<ProcessGroup> WorldOrigin::rebuild(ProcessGroup& parent) {
  // The others may still be in an operation.
  parent.abort("rank " + std::to_string(parent.rank()) + " forms the next generation");
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
  {
    const std::string prefix =
        prefix_ + "next/" + std::to_string(store_) + "/" + std::to_string(attempts_) + "/";
    const auto members = agree_on_survivors(prefix);
    if (!std::binary_search(members.begin(), members.end(), world_->rank())) {
      throw_error({ErrorCode::kRefused, "cannot form the next generation",
                   "the others take rank " + std::to_string(world_->rank()) + " for dead",
                   "end this process, or initialise anew with all of them"});
    }
    ++attempts_;
    try {
      return world_->form(prefix, members, parent.facts().name,
                          "cannot form the next generation of the ranks " + list(members));
    } catch (const CollectiveAborted&) {
      return nullptr;  // every member got this: once more, without who died
    }
  }
}

}  // namespace troupe::collectives
