#include "collectives/op.hpp"

#include <bit>
#include <cstdio>
#include <numeric>

#include "runtime/core/random.hpp"

namespace troupe::collectives {

Op Op::all_reduce_tree(const TreeBuffer& buffer, Reduction how) {
  const Buffer first{.data = buffer.partials.empty() ? nullptr : buffer.partials.front(),
                     .count = buffer.count,
                     .dtype = buffer.dtype,
                     .stream = buffer.stream};
  return {.kind = OpKind::kAllReduceTree, .how = how, .peer = buffer.index, .input = first, .output = first};
}
Op Op::all_reduce(const Buffer& buffer, Reduction how) {
  return {.kind = OpKind::kAllReduce, .how = how, .input = buffer, .output = buffer};
}
Op Op::reduce(const Buffer& buffer, Reduction how, int root) {
  return {.kind = OpKind::kReduce, .how = how, .peer = root, .input = buffer, .output = buffer};
}
Op Op::broadcast(const Buffer& buffer, int root) {
  return {.kind = OpKind::kBroadcast, .peer = root, .input = buffer, .output = buffer};
}
Op Op::gather(const Buffer& input, const Buffer& output, int root) {
  return {.kind = OpKind::kGather, .peer = root, .input = input, .output = output};
}
Op Op::scatter(const Buffer& input, const Buffer& output, int root) {
  return {.kind = OpKind::kScatter, .peer = root, .input = input, .output = output};
}
Op Op::all_gather(const Buffer& input, const Buffer& output) {
  return {.kind = OpKind::kAllGather, .input = input, .output = output};
}
Op Op::reduce_scatter(const Buffer& input, const Buffer& output, Reduction how) {
  return {.kind = OpKind::kReduceScatter, .how = how, .input = input, .output = output};
}
Op Op::all_to_all(const Buffer& input, const Buffer& output) {
  return {.kind = OpKind::kAllToAll, .input = input, .output = output};
}
Op Op::all_gather_v(const Buffer& input, const Buffer& output, std::vector<std::size_t> counts) {
  return {.kind = OpKind::kAllGatherV, .input = input, .output = output, .counts = std::move(counts)};
}
Op Op::reduce_scatter_v(const Buffer& input, const Buffer& output, std::vector<std::size_t> counts,
                        Reduction how) {
  return {.kind = OpKind::kReduceScatterV,
          .how = how,
          .input = input,
          .output = output,
          .counts = std::move(counts)};
}
Op Op::all_to_all_v(const Buffer& input, std::vector<std::size_t> counts, const Buffer& output,
                    std::vector<std::size_t> from_counts) {
  return {.kind = OpKind::kAllToAllV,
          .input = input,
          .output = output,
          .counts = std::move(counts),
          .from_counts = std::move(from_counts)};
}
Op Op::send(const Buffer& buffer, int to, std::uint32_t tag) {
  return {.kind = OpKind::kSend, .peer = to, .tag = tag, .input = buffer};
}
Op Op::recv(const Buffer& buffer, int from, std::uint32_t tag) {
  return {.kind = OpKind::kRecv, .peer = from, .tag = tag, .output = buffer};
}

bool Op::in_place(int rank) const {
  const bool scatters =
      kind == OpKind::kScatter || kind == OpKind::kReduceScatter || kind == OpKind::kReduceScatterV;
  const std::byte* whole = scatters ? in() : out();
  const std::byte* part = scatters ? out() : in();
  const auto r = static_cast<std::size_t>(rank);
  const std::size_t before =
      has_counts(kind) ? std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0}) : r * count;
  return whole != nullptr && part == whole + before * element_size(dtype);
}

bool Op::uses(std::span<const std::byte> memory) const {
  const std::less<const std::byte*> is_before;
  return std::ranges::any_of(std::array{input, output}, [&](const Buffer& buffer) {
    const auto* from = static_cast<const std::byte*>(buffer.data);
    const std::size_t bytes = buffer.count * element_size(buffer.dtype);
    return bytes != 0 && is_before(from, memory.data() + memory.size()) &&
           is_before(memory.data(), from + bytes);
  });
}

bool same_call(const Op& a, const Op& b) {
  return encode(a) == encode(b);
}

namespace {

/// Of a send or receive that is a part of an all_to_all_v: what was called, whose number is its tag
/// (native/mailbox.hpp).
std::string part_text(const Op& part) {
  return std::string(name_of(OpKind::kAllToAllV)) + " #" + std::to_string(part.tag) + " with " +
         std::to_string(part.count) + " x " + std::string(dtype_name(part.dtype)) +
         (part.kind == OpKind::kSend ? " to " : " from ") + std::to_string(part.peer);
}

}  // namespace

std::string to_string(const Op& op) {
  if (is_message(op.kind) && !op.how.exact) return part_text(op);
  std::string text = std::string(name_of(op.kind)) + "(";
  if (op.kind == OpKind::kBarrier) return text + ")";
  if (reduces(op.kind)) {
    text += reduce_op_name(op.how.op);
    if (op.how.factor != 1) {
      char factor[40];
      std::snprintf(factor, sizeof factor, " by %.17g", op.how.factor);
      text += factor;
    }
    text += op.how.exact ? ", " : " in any order, ";
  }
  if (op.kind != OpKind::kAllToAllV) text += std::to_string(op.count) + " x ";
  text += dtype_name(op.dtype);
  constexpr std::size_t kShown = 16;
  for (std::size_t r = 0; r < op.counts.size() && op.kind != OpKind::kAllToAllV; ++r) {
    if (r == kShown) text += " and more";
    if (r < kShown) text += (r == 0 ? " in parts of " : "+") + std::to_string(op.counts[r]);
  }
  const std::string peer = std::to_string(op.peer);
  if (has_root(op.kind)) text += ", root " + peer;
  if (op.kind == OpKind::kAllReduceTree) text += ", buffer " + peer;
  if (op.kind == OpKind::kAllReduce && op.peer > 1) text += ", " + peer + " calls of a batch in one";
  if (is_message(op.kind)) {
    text += (op.kind == OpKind::kSend ? ", to " : ", from ") + (op.peer == kAnyRank ? "any rank" : peer) +
            ", tag " + std::to_string(op.tag);
  }
  return text + ")";
}

std::string numbered(const Op& op) {
  return to_string(op) + (op.sequence == 0 ? "" : " #" + std::to_string(op.sequence));
}

OpWords encode(const Op& op) {
  const auto low = static_cast<std::uint64_t>(op.kind) | static_cast<std::uint64_t>(op.how.op) << 8 |
                   static_cast<std::uint64_t>(op.dtype) << 16 |
                   static_cast<std::uint64_t>(op.how.exact) << 24 |
                   static_cast<std::uint64_t>(static_cast<std::uint32_t>(op.peer)) << 32;
  const auto factor = std::bit_cast<std::uint64_t>(op.how.factor);  // a NaN is equal to itself
  if (op.kind == OpKind::kAllToAllV) return {low, 0, factor};
  std::uint64_t parts = 0;
  for (const std::size_t n : op.counts) parts = mix(parts, n + 1);
  return {low, op.count, factor ^ parts};
}

bool is_call(const OpWords& words) {
  const auto byte = [&](int at) { return static_cast<std::uint8_t>(words[0] >> at); };
  return byte(0) <= static_cast<std::uint8_t>(OpKind::kRecv) && is_known(static_cast<ReduceOp>(byte(8))) &&
         is_known(static_cast<DType>(byte(16))) && byte(24) <= 1;
}

Op decode_op(const OpWords& words) {
  Op op{.kind = static_cast<OpKind>(words[0] & 0xff),
        .dtype = static_cast<DType>(words[0] >> 16 & 0xff),
        .how = Reduction(static_cast<ReduceOp>(words[0] >> 8 & 0xff), (words[0] >> 24 & 1) != 0),
        .peer = static_cast<std::int32_t>(words[0] >> 32),
        .count = words[1]};
  const bool is_batch = op.kind == OpKind::kAllReduce && op.peer > 1;  // of parts, whose counts are not there
  if (!has_counts(op.kind) && !is_batch) op.how.factor = std::bit_cast<double>(words[2]);
  return op;
}

std::string to_string(const OpWords& words) {
  return is_call(words) ? to_string(decode_op(words)) : "something unknown";
}

}  // namespace troupe::collectives
