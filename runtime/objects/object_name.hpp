/// What an object is called: by the process that made it, its owner, and a number of the owner's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/wire/address.hpp"

namespace troupe::objects {

/// In the numbers of objects that tasks compute: whose value is what another object is.
inline constexpr std::uint64_t kComputedNumber = std::uint64_t{1} << 63;

/// Objects of up to this many bytes travel in messages; larger ones lie in shared memory, once a node.
inline constexpr std::size_t kInlineBytes = std::size_t{256} << 10;

struct ObjectName {
  ProcessAddress owner;
  std::uint64_t number = 0;  ///< 0: no object
  bool is_computed() const { return (number & kComputedNumber) != 0; }
  auto operator<=>(const ObjectName&) const = default;
  explicit operator bool() const { return number != 0; }
};

/// The name of its shared memory on a node.
inline std::string region_key(const ObjectName& name) {
  return "object/" + to_string(name.owner.node) + "." + to_string(name.owner.process) + "." +
         to_hex(name.number);
}

}  // namespace troupe::objects

template <>
struct std::hash<troupe::objects::ObjectName> {
  std::size_t operator()(const troupe::objects::ObjectName& name) const noexcept {
    return std::hash<troupe::ProcessAddress>()(name.owner) ^ (name.number * 0x9e3779b97f4a7c15ULL);
  }
};
