/// Spawns that want a name whose holder is asked whether it lives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "runtime/wire/cluster.hpp"

namespace troupe::cluster {

/// In the order in which they came. Bounded by its owner: everything is linear. Not thread-safe.
class NameClaims {
 public:
  /// The number of the question that `holder`, on `node`, is to be asked.
  std::uint64_t add(const SpawnRequested& spawn, NodeId node, ActorId holder, std::uint32_t incarnation) {
    claims_.emplace(++last_, Claim{spawn, node, holder, incarnation});
    return last_;
  }
  /// Takes those that wait for `holder`, as far as `up_to` answers them.
  std::vector<SpawnRequested> take_where(ActorId holder,
                                         std::uint64_t up_to = std::numeric_limits<std::uint64_t>::max()) {
    std::vector<SpawnRequested> taken;
    for (auto at = claims_.begin(); at != claims_.end() && at->first <= up_to;) {
      if (at->second.holder != holder) {
        ++at;
        continue;
      }
      taken.push_back(std::move(at->second.spawn));
      at = claims_.erase(at);
    }
    return taken;
  }
  std::vector<SpawnRequested> take_if(const std::function<bool(const SpawnRequested&)>& which) {
    std::vector<SpawnRequested> taken;
    std::erase_if(claims_, [&](auto& claim) {
      if (!which(claim.second.spawn)) return false;
      taken.push_back(std::move(claim.second.spawn));
      return true;
    });
    return taken;
  }
  /// Those for that node, which may not have heard them.
  std::vector<ConfirmActor> questions(NodeId node) const {
    std::vector<ConfirmActor> asked;
    for (const auto& [question, claim] : claims_) {
      if (claim.node == node) asked.push_back({node, claim.holder, question, claim.incarnation});
    }
    return asked;
  }
  bool contains(const Requester& requester) const {
    return std::any_of(claims_.begin(), claims_.end(),
                       [&](const auto& claim) { return claim.second.spawn.requester == requester; });
  }
  std::size_t size() const { return claims_.size(); }
  std::size_t payload_bytes() const {
    std::size_t all = 0;
    for (const auto& [question, claim] : claims_) all += claim.spawn.spec.payload.size();
    return all;
  }

 private:
  struct Claim {
    SpawnRequested spawn;
    NodeId node;
    ActorId holder;
    std::uint32_t incarnation;
  };
  std::map<std::uint64_t, Claim> claims_;
  std::uint64_t last_ = 0;
};

}  // namespace troupe::cluster
