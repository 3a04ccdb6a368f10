/// What a call's buffers and ranks have to be, whatever the backend: pure checks, before anybody takes part.
///
/// All throw BadInput, or Error with ErrorCode::kLimit, whose text names the call: null with elements, not
/// aligned to the element, another dtype, device or number of elements than the other buffer, on a device
/// that the backend does not serve, overlapping, more than 2^40 elements, a rank that does not exist, a dtype
/// that does not reduce by the operation, a factor that it does not have.
#pragma once

#include <cstddef>
#include <string_view>

#include "collectives/types.hpp"

namespace troupe::collectives {

inline constexpr std::size_t kMaxElements = std::size_t{1} << 40;  ///< of a buffer

/// Who calls what.
struct Call {
  std::string_view name;  ///< "all_gather"
  int rank = 0;
  int size = 1;
  DeviceKind device = DeviceKind::kCpu;  ///< what the backend serves
};

/// A count that somebody wants to allocate.
void check_count(const Call& call, std::size_t count);

/// One buffer by itself. `which`: "buffer", "input" or "output".
void check_buffer(const Call& call, std::string_view which, const Buffer& buffer);

/// Whether `dtype` reduces like this; in order on a tree of leaves (`tree`), which scales no inputs: scaled
/// sums of leaves have other bits than sums of scaled leaves, so the result would depend on how leaves are
/// dealt.
void check_reduction(const Call& call, DType dtype, const Reduction& how, bool tree = false);

/// A root, or the other rank of a send or recv; `role` is "root", "to" or "from".
void check_rank(const Call& call, std::string_view role, int rank);

/// Input and output of a call in which one or both have a part for every rank. Each is checked by itself and
/// against the other. They may not overlap, but for one case: the buffer of one part may be this rank's part
/// of the other (all_gather, gather, reduce_scatter and scatter in place). Returns the elements of a part.
enum class Parts {
  kGathered,   ///< output = size() x input
  kScattered,  ///< input = size() x output
  kExchanged,  ///< both have size() parts; all_to_all, for which nothing may overlap
};
std::size_t check_parts(const Call& call, Parts parts, const Buffer& input, const Buffer& output);

}  // namespace troupe::collectives
