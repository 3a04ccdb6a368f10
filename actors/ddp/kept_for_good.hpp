/// Memory that an operation of a group is at which never ends: a group that was aborted and does not get
/// quiet (ProcessGroup::await_quiet), as one of MPI's, which cannot take an operation back.
#pragma once

#include <memory>
#include <utility>

namespace troupe::train {

/// Keeps it until the process ends. Thread-safe.
void keep_for_good(std::shared_ptr<const void> what);
template <class What>
void keep_value_for_good(What what) {
  keep_for_good(std::make_shared<const What>(std::move(what)));
}

}  // namespace troupe::train
