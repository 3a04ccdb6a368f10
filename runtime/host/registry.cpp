#include "runtime/host/registry.hpp"

#include <exception>

namespace troupe {

Registry& Registry::instance() {
  static Registry registry;
  return registry;
}

bool Registry::add_method(std::uint64_t id, std::string_view name, InvokeMethod invoke) {
  methods_.emplace(id, Method{std::string(name), invoke});
  return true;
}

bool Registry::add_constructor(std::uint64_t id, std::string_view name, MakeObject make) {
  constructors_.emplace(id, Constructor{std::string(name), make});
  return true;
}

const Registry::Method* Registry::method(std::uint64_t id) const {
  const auto at = methods_.find(id);
  return at == methods_.end() ? nullptr : &at->second;
}

const Registry::Constructor* Registry::constructor(std::uint64_t id) const {
  const auto at = constructors_.find(id);
  return at == constructors_.end() ? nullptr : &at->second;
}

ErrorInfo describe_exception(std::string_view where) {
  const std::string what = std::string(where) + " threw";
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), what + ": " + error.info().what, error.info().why, error.info().todo};
  } catch (const std::exception& error) {
    return {ErrorCode::kTaskFailed, what, error.what(), ""};
  } catch (...) {
    return {ErrorCode::kTaskFailed, what, "an exception that is no std::exception", ""};
  }
}

namespace detail {

std::string_view pretty_part(std::string_view pretty) {
  // GCC: "... [with auto M = &T::f; std::string_view = ...]" or "[with T = {X}; ...]"; Clang: "[M = &T::f]".
  const auto equals = pretty.find("= ");
  if (equals == std::string_view::npos) return pretty;
  auto part = pretty.substr(equals + 2);
  const auto end = part.find_first_of(";]");
  if (end != std::string_view::npos) part = part.substr(0, end);
  while (!part.empty() && (part.front() == '{' || part.front() == '&')) part.remove_prefix(1);
  while (!part.empty() && part.back() == '}') part.remove_suffix(1);
  return part;
}

}  // namespace detail
}  // namespace troupe
