/// Which node an event came from and which node an action goes to, as the types themselves say it.
#pragma once

#include <optional>
#include <variant>

#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe {

/// The node that may send this event, or nothing when no node may.
inline std::optional<NodeId> sender_of(const cluster::ClusterEvent& event) {
  return std::visit(
      [](const auto& e) -> std::optional<NodeId> {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, cluster::NodeJoined>)
          return e.node.id;
        else if constexpr (std::is_same_v<E, cluster::JobRegistered>)
          return e.driver.node;
        else if constexpr (std::is_same_v<E, cluster::ActorArguments>)
          return e.node;
        else if constexpr (requires { e.requester.from.node; })
          return e.requester.from.node;
        else if constexpr (requires { e.node; })
          return e.node;
        else
          return std::nullopt;
      },
      event);
}

/// The node that an action is for; none for what is the store's.
inline NodeId receiver_of(const cluster::ClusterAction& action) {
  return std::visit(
      [](const auto& a) -> NodeId {
        using A = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<A, cluster::ArgumentsWanted>)
          return a.node ? a.node : a.to.from.node;
        else if constexpr (requires { a.to.from.node; })
          return a.to.from.node;
        else if constexpr (requires { a.to.node; })
          return a.to.node;
        else if constexpr (requires { a.to; })
          return a.to;
        else if constexpr (requires { a.node; })
          return a.node;
        else
          return {};
      },
      action);
}

}  // namespace troupe
