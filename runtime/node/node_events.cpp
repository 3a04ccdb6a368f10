#include "runtime/node/node_events.hpp"

namespace troupe::node {

NodeEvent::NodeEvent() = default;
NodeEvent::NodeEvent(const NodeEvent&) = default;
NodeEvent::NodeEvent(NodeEvent&&) noexcept = default;
NodeEvent& NodeEvent::operator=(const NodeEvent&) = default;
NodeEvent& NodeEvent::operator=(NodeEvent&&) noexcept = default;
NodeEvent::~NodeEvent() = default;

NodeAction::NodeAction() = default;
NodeAction::NodeAction(const NodeAction&) = default;
NodeAction::NodeAction(NodeAction&&) noexcept = default;
NodeAction& NodeAction::operator=(const NodeAction&) = default;
NodeAction& NodeAction::operator=(NodeAction&&) noexcept = default;
NodeAction::~NodeAction() = default;

}  // namespace troupe::node
