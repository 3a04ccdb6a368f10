#include "actors/train/job/user_code.hpp"

#include <c10/util/Exception.h>

#include "actors/report/format.hpp"
#include "runtime/host/registry.hpp"

namespace troupe::train {

ErrorInfo describe_user_exception(const std::string& what) {
  ErrorInfo info = describe_exception(what);
  info.origin.clear();  // who was told it says where
  try {
    throw;
  } catch (const c10::Error& error) {
    info.why = error.what_without_backtrace();
  } catch (...) {
    // All of its message is for people.
  }
  info.why = report::without_controls(std::move(info.why));  // it goes to terminals
  return info;
}

}  // namespace troupe::train
