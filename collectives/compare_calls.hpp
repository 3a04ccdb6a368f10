/// Whether all ranks called the same collective, for backends on libraries that do not compare: the words of
/// each rank's call, all-gathered ahead of it. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "collectives/op.hpp"

namespace troupe::collectives {

/// A call as it travels: its words and its sequence number, which are equal for equal calls; and last, of an
/// all_to_all with counts, what this rank gives less what it takes: over all ranks that is 0 if they fit.
using CallWords = std::array<std::uint64_t, kOpWords + 2>;

/// The words of `op`, called on `rank`.
CallWords call_words(const Op& op, int rank);

/// What differs between the calls of all ranks, which are there by rank; empty: nothing.
std::string difference(std::span<const CallWords> calls);

}  // namespace troupe::collectives
