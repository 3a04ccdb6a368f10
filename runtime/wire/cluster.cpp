#include "runtime/wire/cluster.hpp"

namespace troupe::cluster {

std::optional<ErrorInfo> state_too_large(ActorId actor, std::size_t payload_bytes, const SavedState& state) {
  const std::size_t bytes = payload_bytes + state.bytes.size();
  if (bytes <= kMaxPayloadBytes) return std::nullopt;
  return ErrorInfo{ErrorCode::kLimit, "cannot keep the state of actor " + to_string(actor),
                   "with its constructor's arguments it has " + std::to_string(bytes) + " bytes of " +
                       std::to_string(kMaxPayloadBytes),
                   "let save() return less"};
}

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
