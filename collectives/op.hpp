/// One call of a process group as a value: the checks of its arguments, what ranks compare, the trace, the
/// flight recorder and the backends all take this.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/types.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::collectives {

enum class OpKind : std::uint8_t {
  kAllReduceTree,
  kAllReduce,
  kReduce,
  kBroadcast,
  kGather,
  kScatter,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kAllGatherV,  ///< V: ranks' parts differ, see Op::counts
  kReduceScatterV,
  kAllToAllV,
  kBarrier,
  kSend,  ///< from here on: between two ranks, with an order of their own
  kRecv,
};

inline constexpr std::array<std::string_view, 15> kOpKindNames{
    "all_reduce_tree",  "all_reduce",   "reduce",         "broadcast",  "gather",
    "scatter",          "all_gather",   "reduce_scatter", "all_to_all", "all_gather_v",
    "reduce_scatter_v", "all_to_all_v", "barrier",        "send",       "recv"};

constexpr std::string_view name_of(OpKind kind) {
  const auto at = static_cast<std::size_t>(kind);
  return at < kOpKindNames.size() ? kOpKindNames[at] : "an unknown operation";
}
constexpr bool is_message(OpKind kind) {
  return kind >= OpKind::kSend;
}
/// Operations that add up (or the like).
constexpr bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduceTree || kind == OpKind::kAllReduce || kind == OpKind::kReduce ||
         kind == OpKind::kReduceScatter || kind == OpKind::kReduceScatterV;
}
/// Whose ranks' parts differ.
constexpr bool has_counts(OpKind kind) {
  return kind == OpKind::kAllGatherV || kind == OpKind::kReduceScatterV || kind == OpKind::kAllToAllV;
}
constexpr bool has_root(OpKind kind) {
  return kind == OpKind::kReduce || kind == OpKind::kBroadcast || kind == OpKind::kGather ||
         kind == OpKind::kScatter;
}

/// Gradients of a bucket while they are reduced: per partial sum of this rank (see leaf_tree.hpp) one array
/// of `count` elements in memory that the group reaches without a copy. After the operation slot 0 holds the
/// result. The memory belongs to the group and lives as long as it.
struct TreeBuffer {
  std::vector<std::byte*> partials;  ///< one a canonical node of this rank's interval, left to right
  std::size_t count = 0;             ///< elements in each
  DType dtype = DType::kFloat32;
  int index = 0;           ///< which tree of the group this is
  void* stream = nullptr;  ///< on a GPU, the stream that fills it, as in Buffer; the caller sets it
};

inline constexpr int kAnyRank = -1;  ///< of a receive: whoever sends first

/// Make one with the functions below, whose arguments are those of ProcessGroup's, for ProcessGroup::batch.
/// Cheap to copy. An Op that came from another rank, or that is remembered, has no buffers.
struct Op {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kFloat32;
  Reduction how{};             ///< of what reduces
  std::int32_t peer = 0;       ///< the root, the other rank of a message, or TreeBuffer::index
  std::uint32_t tag = 0;       ///< of a message
  std::uint64_t count = 0;     ///< elements of one rank's part; the group sets it from the buffers
  std::uint64_t sequence = 0;  ///< of a collective: its number in the group, from 1; the group sets it
  Buffer input{};              ///< what this rank gives, and what it gets: the same one for operations in
  Buffer output{};             ///< place, nothing where the rank gives or gets nothing
  /// Of what has_counts: elements of every rank's part, the same on all ranks. Of all_to_all_v: what this
  /// rank gives each, and in `from_counts` what it gets from each, which differ between ranks.
  std::vector<std::size_t> counts{};
  std::vector<std::size_t> from_counts{};
  Duration timeout{};  ///< without progress of any rank; 0: the group's

  static Op all_reduce_tree(const TreeBuffer& buffer, Reduction how);
  static Op all_reduce(const Buffer& buffer, Reduction how);
  static Op reduce(const Buffer& buffer, Reduction how, int root);
  static Op broadcast(const Buffer& buffer, int root);
  static Op gather(const Buffer& input, const Buffer& output, int root);
  static Op scatter(const Buffer& input, const Buffer& output, int root);
  static Op all_gather(const Buffer& input, const Buffer& output);
  static Op reduce_scatter(const Buffer& input, const Buffer& output, Reduction how);
  static Op all_to_all(const Buffer& input, const Buffer& output);
  static Op all_gather_v(const Buffer& input, const Buffer& output, std::vector<std::size_t> counts);
  static Op reduce_scatter_v(const Buffer& input, const Buffer& output, std::vector<std::size_t> counts,
                             Reduction how);
  static Op all_to_all_v(const Buffer& input, std::vector<std::size_t> counts, const Buffer& output,
                         std::vector<std::size_t> from_counts);
  static Op barrier() { return {}; }
  static Op send(const Buffer& buffer, int to, std::uint32_t tag = 0);
  static Op recv(const Buffer& buffer, int from, std::uint32_t tag = 0);
  /// The same with a timeout of its own, for ProcessGroup::batch; 0: the group's.
  Op within(Duration limit) const {
    Op op = *this;
    op.timeout = limit;
    return op;
  }

  /// Bytes of one rank's part.
  std::size_t bytes() const { return count * element_size(dtype); }
  const std::byte* in() const { return static_cast<const std::byte*>(input.data); }
  std::byte* out() const { return static_cast<std::byte*>(output.data); }
  /// Whether the smaller buffer is the part of `rank` in the larger one.
  bool in_place(int rank) const;
  /// Whether one of its buffers has a byte of `memory`.
  bool uses(std::span<const std::byte> memory) const;
};

/// Whether two ranks called the same collective: everything but sequence and buffers.
bool same_call(const Op& a, const Op& b);

/// "all_reduce(sum, 100 x f32)", "send(3 x f32, to 1, tag 7)".
std::string to_string(const Op& op);
/// As to_string, with the number of a collective: "barrier() #3".
std::string numbered(const Op& op);

/// What same_call compares (of counts a hash), as three words for the wire and shared memory.
inline constexpr std::size_t kOpWords = 3;
using OpWords = std::array<std::uint64_t, kOpWords>;
OpWords encode(const Op& op);
/// Whether words that somebody else wrote are a call. Otherwise the ranks run different builds.
bool is_call(const OpWords& words);
/// The call in them. REQUIRES: is_call(words).
Op decode_op(const OpWords& words);
/// As to_string(Op), of words that another rank wrote.
std::string to_string(const OpWords& words);

}  // namespace troupe::collectives
