/// What is wrong about the placement group of an actor's or a task's options.
#pragma once

#include "runtime/core/ids.hpp"

namespace troupe::detail {

inline constexpr const char* kGroupOptions =
    "give a group alone, or a group and one of its bundles: .placement_group = group, .bundle = 0";

inline constexpr const char* kOtherOptions =
    "name what nodes have: .memory = 512 << 20, .resources = {{\"tpu\", 1}}, .labels = {{\"zone\", \"a\"}}";

/// Null: nothing.
template <class Options>
const char* group_options_wrong(const Options& options) {
  if (options.bundle < -1) return "its bundle is below 0";
  if (options.bundle >= 0 && !options.placement_group) return "it asks for a bundle of no placement group";
  if (options.placement_group && options.node) return "it asks for a placement group and for a node";
  return nullptr;
}

}  // namespace troupe::detail
