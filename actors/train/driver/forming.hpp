/// A generation that forms: who is in its group, who holds its state, who cannot read its checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/train/driver/recovery.hpp"

namespace troupe::train {

/// A value. Not thread-safe.
///
/// Invariant: a member that holds the state holds it until the next generation begins.
class Forming {
 public:
  /// A checkpoint that not every member can read.
  struct Unread {
    std::optional<ActorId> reader;  ///< the last member that holds the state; none: nobody could read it
    std::string reasons;            ///< of those that could not
  };

  /// A generation begins with these, in rank order.
  void begin(const std::vector<Recovery::Member>& members);
  /// These three REQUIRE: a member.
  void joined_group(ActorId member) { at(member).in_group = true; }
  void installed(ActorId member) { at(member).holds = true; }
  void cannot_read(ActorId member, std::string why) { at(member).unread = std::move(why); }

  /// In this generation, or in the last one while the next is planned.
  bool holds(ActorId trainer) const;
  /// All are in the group and hold the state.
  bool is_complete() const;
  /// Once every member holds the state or could not read its checkpoint, and one could not.
  std::optional<Unread> unread() const;

 private:
  struct Member {
    ActorId actor{};
    bool in_group = false;
    bool holds = false;
    std::string unread;  ///< why it cannot read the checkpoint
  };
  Member& at(ActorId member);

  std::vector<Member> members_;  ///< in rank order
};

}  // namespace troupe::train
