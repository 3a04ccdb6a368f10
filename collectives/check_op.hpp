/// What a call's buffers and ranks have to be, whatever the backend: pure checks, before anybody takes part.
///
/// All throw BadInput, or Error with ErrorCode::kLimit, whose text names the call: null with elements, not
/// aligned to the element, counts that do not add up to the buffer, another dtype, device or number of
/// elements than the other buffer, on a device that the group does not serve, overlapping, more than 2^40
/// elements, a rank that does not exist, a dtype that does not reduce by the operation, a factor that it does
/// not have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "collectives/group_facts.hpp"
#include "collectives/op.hpp"

namespace troupe::collectives {

inline constexpr std::size_t kMaxElements = std::size_t{1} << 40;  ///< of a buffer

/// A count that somebody wants to allocate.
void check_count(std::string_view call, std::size_t count);

/// Sets what follows from the buffers (count, dtype), and forgets what is not looked at on this rank: the
/// output of a gather or reduce except on the root, the input of a scatter except there, the factor of what
/// has none. Never throws.
void complete_op(Op& op, const GroupFacts& group);

/// Buffers, root or partner, and reduction of a completed op. Input and output may not overlap, but for one
/// case: the buffer of one part may be this rank's part of the other (all_gather, gather, reduce_scatter and
/// scatter in place). Whether a tree is the group's own is the group's matter.
void check_op(const Op& op, const GroupFacts& group);

/// Of a batch, whose ops are each right: what one of them writes no other one may read or write.
void check_apart(std::span<const Op> ops, const GroupFacts& group);

// Whether all ranks called the same collective, for backends on libraries that do not compare: the words of
// each rank's call, all-gathered ahead of it.

/// A call as it travels: its words and its sequence number, which are equal for equal calls; and last, of an
/// all_to_all with counts, what this rank gives less what it takes: over all ranks that is 0 if they fit.
using CallWords = std::array<std::uint64_t, kOpWords + 2>;

/// The words of `op`, called on `rank`.
CallWords call_words(const Op& op, int rank);

/// What differs between the calls of all ranks, which are there by rank; empty: nothing.
std::string difference(std::span<const CallWords> calls);

}  // namespace troupe::collectives
