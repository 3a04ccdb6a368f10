#include "runtime/wire/cluster.hpp"

namespace troupe::cluster {

ClusterEvent::ClusterEvent() = default;
ClusterEvent::ClusterEvent(const ClusterEvent&) = default;
ClusterEvent::ClusterEvent(ClusterEvent&&) noexcept = default;
ClusterEvent& ClusterEvent::operator=(const ClusterEvent&) = default;
ClusterEvent& ClusterEvent::operator=(ClusterEvent&&) noexcept = default;
ClusterEvent::~ClusterEvent() = default;

ClusterAction::ClusterAction() = default;
ClusterAction::ClusterAction(const ClusterAction&) = default;
ClusterAction::ClusterAction(ClusterAction&&) noexcept = default;
ClusterAction& ClusterAction::operator=(const ClusterAction&) = default;
ClusterAction& ClusterAction::operator=(ClusterAction&&) noexcept = default;
ClusterAction::~ClusterAction() = default;

}  // namespace troupe::cluster
