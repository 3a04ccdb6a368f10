/// What every backend has to do beside the matrix of every_op.hpp, checked on one rank of a group: throws at
/// what is wrong.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "tests/collectives/every_op.hpp"

namespace troupe::collectives::testing {

/// What `call` throws, which has to be an Expected.
template <class Expected>
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Expected& e) {
    return e.what();
  }
  throw std::runtime_error("nothing was thrown");
}

/// Everybody to everybody, with tags, in any order; and receives from any rank.
void check_messages(ProcessGroup& group);
/// What is refused, and that the group is good afterwards.
void check_refusals(ProcessGroup& group);
/// Works: polling, waiting for a while, launches ahead in any order of waiting.
void check_works(ProcessGroup& group);
/// A sum is rounded as the thread that launched it rounded then, whatever that thread does later.
void check_rounding(ProcessGroup& group);
/// Collectives and messages that are launched together.
void check_batch(ProcessGroup& group);
/// Complex numbers, which the matrix moves and does not add.
void check_complex(ProcessGroup& group);

/// Memory of the group: given back, and what is refused. REQUIRES: 64 KiB of it are free.
void check_memory(ProcessGroup& group);

/// All of these and the matrix, for a backend on a library.
void check_library(ProcessGroup& group);

}  // namespace troupe::collectives::testing
