/// What every backend on a library has to do, checked on one rank of a group: throws at what is wrong.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::collectives::testing {

/// Catch2's checks are for one thread; ranks that are threads throw.
inline void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

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

/// `count` elements of leaf or rank `who`: random, the same in every process.
std::vector<std::byte> values_of(int who, std::size_t count, DType dtype);

/// What the native group makes of values_of(0..) by `how`, computed in this process: with one rank and one
/// leaf for each `who`.
std::vector<std::byte> native_sum(int ranks, std::size_t count, DType dtype, Reduction how);

/// Moves: broadcast, gather, scatter, all_gather, all_to_all, barrier and messages of some dtypes and sizes.
void check_moves(ProcessGroup& group);
/// Reductions with exact = true have the native group's bits, for every dtype and op that the kernels have.
void check_exact(ProcessGroup& group);
/// all_reduce_tree has the native group's bits. REQUIRES: the group's leaves are deal_leaves(leaves, size()).
void check_tree(ProcessGroup& group, int leaves);
/// Reductions with exact = false, on whole numbers, against a scalar loop.
void check_any_order(ProcessGroup& group);
/// What is refused, and that the group is good afterwards.
void check_refusals(ProcessGroup& group);
/// Works: polling, waiting for a while, launches ahead in any order of waiting.
void check_works(ProcessGroup& group);
/// Collectives and messages that are launched together.
void check_batch(ProcessGroup& group);
/// Parts of different counts, some of them none: all_gather, reduce_scatter, all_to_all, in place and not;
/// and receives from any rank.
void check_uneven(ProcessGroup& group);
/// The dtypes that C++ has no type or no arithmetic for, as far as they differ from the others.
void check_new_dtypes(ProcessGroup& group);

}  // namespace troupe::collectives::testing
