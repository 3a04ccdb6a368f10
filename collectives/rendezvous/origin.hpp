/// What a group knows of the world it was formed in: how new groups are made of its ranks.
#pragma once

#include "collectives/rendezvous/world.hpp"

namespace troupe::collectives {

/// One a group; used by one thread at a time, as the group is.
class WorldOrigin final : public GroupOrigin {
 public:
  /// `members`: the world's ranks that the group has, by its own.
  WorldOrigin(std::shared_ptr<World> world, const ProcessGroup& group, std::vector<int> members);
  std::shared_ptr<ProcessGroup> new_group(ProcessGroup& parent, const std::vector<int>& ranks) override;
  std::shared_ptr<ProcessGroup> rebuild(ProcessGroup& parent) override;

 private:
  std::shared_ptr<ProcessGroup> try_to_rebuild(ProcessGroup& parent);

  std::shared_ptr<World> world_;
  std::string prefix_;  ///< of the keys of what is made here
  std::vector<int> members_;
  int made_ = 0;      ///< groups so far
  int store_ = 0;     ///< number of the store (World) at which
  int attempts_ = 0;  ///< of rebuild were made
};

}  // namespace troupe::collectives
