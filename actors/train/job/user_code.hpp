/// What the job's own code throws, told as its user knows it.
#pragma once

#include <string>
#include <utility>

#include "runtime/core/error.hpp"

namespace troupe::train {

/// The exception that is being handled: "Digits::loss threw std::out_of_range", and its message, of
/// LibTorch's errors without the frames of a backtrace. Call in a catch block.
ErrorInfo describe_user_exception(const std::string& what);

/// Runs a part of the job's code; whatever it throws leaves as an Error of that kind.
template <class Body>
auto run_user_code(const std::string& what, Body&& body) {
  try {
    return body();
  } catch (...) {
    throw_error(describe_user_exception(what));
  }
}

}  // namespace troupe::train
