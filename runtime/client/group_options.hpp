/// What is wrong about an actor's or a task's options: their placement group, and numbers as errors say them.
#pragma once

#include <charconv>
#include <string>

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

/// As short as it can be read back: 1e300 has 300 digits otherwise.
inline std::string short_text(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

}  // namespace troupe::detail
