/// The name of a type as the compiler prints it: for ids that two processes of one executable agree on, and
/// for error messages.
#pragma once

#include <string_view>

namespace troupe {

namespace detail {

/// The part of a __PRETTY_FUNCTION__ after "= ", up to the end of that parameter.
/// GCC: "... [with T = X; std::string_view = ...]", with X in braces if it is a pack; Clang: "[T = X]".
constexpr std::string_view pretty_part(std::string_view pretty) {
  const auto equals = pretty.find("= ");
  if (equals == std::string_view::npos) return pretty;
  auto part = pretty.substr(equals + 2);
  const auto end = part.find("; std::string_view");
  part = part.substr(0, end == std::string_view::npos ? part.rfind(']') : end);
  if (part.starts_with('{') && part.ends_with('}')) part = part.substr(1, part.size() - 2);
  return part;
}

}  // namespace detail

/// "troupe::ActorAddress", "std::vector<int>". Types without linkage may share a name.
template <class T>
constexpr std::string_view type_name() {
  return detail::pretty_part(__PRETTY_FUNCTION__);
}

}  // namespace troupe
