/// Identities as distinct types, so that a node id cannot be passed where an actor id belongs.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace troupe {

/// A 64-bit identity of one kind. 0 is "none".
template <class Tag>
struct Id {
  std::uint64_t value = 0;
  auto operator<=>(const Id&) const = default;
  explicit operator bool() const { return value != 0; }
};

using NodeId = Id<struct NodeTag>;        ///< one start of a node process
using ProcessId = Id<struct ProcessTag>;  ///< one start of a worker or driver process (not the kernel's pid)
using ActorId = Id<struct ActorTag>;      ///< one actor; a restarted actor keeps its id
using JobId = Id<struct JobTag>;          ///< one job: a driver and all it started
using GroupId = Id<struct GroupTag>;      ///< one placement group

/// A light actor's id is chosen by whoever spawns it, and marked: nobody but the process that hosts it knows
/// it. All other actors' ids are given by the head.
inline constexpr std::uint64_t kLightActorBit = std::uint64_t{1} << 63;
inline ActorId light_actor_id(std::uint64_t random) {
  return {random | kLightActorBit};
}
inline bool is_light(ActorId actor) {
  return (actor.value & kLightActorBit) != 0;
}
/// An actor that is started again when it dies lives now here, now there. Its id says so: who calls it looks
/// its place up.
inline constexpr std::uint64_t kRestartableActorBit = std::uint64_t{1} << 62;
inline ActorId placed_actor_id(std::uint64_t random, bool restartable = false) {
  return {(random & ~kLightActorBit & ~kRestartableActorBit) | (restartable ? kRestartableActorBit : 0)};
}
inline bool is_restartable(ActorId actor) {
  return !is_light(actor) && (actor.value & kRestartableActorBit) != 0;
}

/// Who may commit: (incarnation of the driver, counter within it). A restarted driver outranks the one before
/// it.
struct Generation {
  std::uint32_t incarnation = 0;
  std::uint32_t counter = 0;
  auto operator<=>(const Generation&) const = default;
};

/// Lower-case hexadecimal without leading zeros, as ids are printed.
std::string to_hex(std::uint64_t value);
template <class Tag>
std::string to_string(Id<Tag> id) {
  return to_hex(id.value);
}
/// "incarnation.counter".
std::string to_string(Generation generation);

}  // namespace troupe

template <class Tag>
struct std::hash<troupe::Id<Tag>> {
  std::size_t operator()(troupe::Id<Tag> id) const noexcept { return id.value * 0x9e3779b97f4a7c15ULL; }
};
