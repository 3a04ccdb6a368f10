/// A base for actors that form a process group:
///
///   struct Trainer : troupe::collectives::GroupMember {
///     double mean(double mine);  // uses process_group()
///   };
///   auto group = session.spawn_group<Trainer>(4, {.isolated = true});
///   group.form_process_group("native");
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collectives/rendezvous/init.hpp"
#include "runtime/core/held_port.hpp"

namespace troupe::collectives {

/// Not thread-safe: of one actor.
class GroupMember {
 public:
  GroupMember() = default;
  GroupMember(GroupMember&&) = default;
  GroupMember& operator=(GroupMember&&) = default;

  /// The group that was formed last. Throws BadConfig before the first.
  const std::shared_ptr<ProcessGroup>& process_group() const;

  // What ActorGroup::form_process_group calls.
  /// A port at which rank 0 will serve; it holds it until then. Throws IoError.
  std::uint16_t hold_meeting_port();
  /// Leaves the group of before, and meets the others. Throws as init_process_group.
  void join_process_group(const std::string& backend, const std::string& url, const std::string& key,
                          int rank, int size, Duration timeout, std::uint64_t data_bytes);

 private:
  HeldPort port_;
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace troupe::collectives
