#include "collectives/check_op.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "collectives/native/kernels.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

/// The checks of one call.
class Checks {
 public:
  Checks(const Op& op, const GroupFacts& group) : op_(op), group_(group) {}

  void run() const {
    if (op_.kind > OpKind::kRecv) {
      refuse("there is no operation " + std::to_string(static_cast<int>(op_.kind)),
             "make it with the functions of Op");
    }
    if (op_.timeout < Duration::zero())
      refuse("its timeout is negative", "give a positive one; 0 stands for the group's");
    if (op_.kind == OpKind::kBarrier) return;
    if (has_root(op_.kind)) rank("root");
    if (is_message(op_.kind)) rank(op_.kind == OpKind::kSend ? "to" : "from");
    const bool root = group_.rank == op_.peer;
    switch (op_.kind) {
      case OpKind::kGather:
        root ? parts() : buffer("input", op_.input);
        break;
      case OpKind::kScatter:
        root ? parts() : buffer("output", op_.output);
        break;
      case OpKind::kAllGather:
      case OpKind::kReduceScatter:
      case OpKind::kAllToAll:
        parts();
        break;
      case OpKind::kAllGatherV:
      case OpKind::kReduceScatterV:
      case OpKind::kAllToAllV:
        unequal_parts();
        break;
      case OpKind::kAllReduceTree:
        break;
      default:
        buffer("buffer", op_.kind == OpKind::kRecv ? op_.output : op_.input);
    }
    if (reduces(op_.kind)) reduction();
  }

 private:
  [[noreturn]] void refuse(std::string why, std::string todo) const {
    throw_error(
        {ErrorCode::kBadInput, "cannot " + std::string(name_of(op_.kind)), std::move(why), std::move(todo)});
  }

  void rank(const char* role) const {
    if (op_.peer >= 0 && op_.peer < group_.size) return;
    if (op_.kind == OpKind::kRecv && op_.peer == kAnyRank) return;
    refuse(std::string(role) + " is rank " + std::to_string(op_.peer) + ", and the group has " +
               count_of(group_.size, "rank"),
           "ranks count from 0");
  }

  void buffer(const char* which, const Buffer& buffer) const {
    const auto refuse_it = [&](const std::string& what, std::string todo) {
      refuse(std::string("the ") + which + what, std::move(todo));
    };
    if (!is_known(buffer.dtype)) {
      refuse_it(" has dtype " + std::to_string(static_cast<int>(buffer.dtype)), "give one that DType names");
    }
    check_count(name_of(op_.kind), buffer.count);
    const bool cpu = group_.device.kind == DeviceKind::kCpu;
    if (buffer.device.kind != group_.device.kind) {
      refuse_it(std::string(" is not in the memory of ") + (cpu ? "the CPU" : "a CUDA device"),
                "copy it there, or use a backend for its device");
    }
    if (!cpu && buffer.device.index != group_.device.index) {
      refuse_it(" is on cuda:" + std::to_string(buffer.device.index) +
                    ", and this rank's device is cuda:" + std::to_string(group_.device.index),
                "copy it there");
    }
    if (buffer.count == 0) return;
    if (buffer.data == nullptr) {
      refuse_it(" is null and has " + std::to_string(buffer.count) + " elements", "give memory for them");
    }
    const std::size_t alignment = element_size(buffer.dtype) / (is_complex(buffer.dtype) ? 2 : 1);
    if ((reinterpret_cast<std::uintptr_t>(buffer.data) & (alignment - 1)) != 0) {
      refuse_it(" is not aligned to its elements (" + std::string(dtype_name(buffer.dtype)) + ")",
                "align it to " + std::to_string(alignment) + " bytes");
    }
  }

  void list(const char* which, const std::vector<std::size_t>& counts, std::size_t count) const {
    const auto size = static_cast<std::size_t>(group_.size);
    std::size_t all = 0;
    for (const std::size_t n : counts) {
      check_count(name_of(op_.kind), n);
      all += n;
    }
    if (counts.size() == size && all == count) return;
    refuse(std::string("the counts of the ") + which + " are " + std::to_string(counts.size()) + " of " +
               std::to_string(all) + " elements in all, with " + std::to_string(size) + " ranks and " +
               std::to_string(count) + " elements",
           "give one count a rank, which add up to the buffer's");
  }

  /// A part for every rank, each with a count of its own.
  void unequal_parts() const {
    const bool gathers = op_.kind == OpKind::kAllGatherV, exchanges = op_.kind == OpKind::kAllToAllV;
    same_kind();
    list(gathers ? "output" : "input", op_.counts, gathers ? op_.output.count : op_.input.count);
    if (exchanges) list("output", op_.from_counts, op_.output.count);
    const auto r = static_cast<std::size_t>(group_.rank);
    if (exchanges && op_.counts[r] != op_.from_counts[r]) {
      refuse("this rank gives itself " + std::to_string(op_.counts[r]) + " elements and takes " +
                 std::to_string(op_.from_counts[r]),
             "give the same");
    }
    const Buffer& part = gathers ? op_.input : op_.output;
    const std::size_t own = op_.counts[r];
    if (!exchanges && part.count != own) {
      refuse("this rank's part has " + std::to_string(part.count) + " elements and its count is " +
                 std::to_string(own),
             "give the same");
    }
    if (part.count != 0 && overlap() && (exchanges || !op_.in_place(group_.rank))) refuse_overlap(exchanges);
  }

  [[noreturn]] void refuse_overlap(bool exchanges) const {
    refuse("input and output overlap",
           exchanges ? "give two buffers"
                     : "give two buffers, or this rank's part of the larger one as the other");
  }

  void same_kind() const {
    const Buffer &in = op_.input, &out = op_.output;
    buffer("input", in);
    buffer("output", out);
    if (in.dtype != out.dtype) {
      refuse("the input has " + std::string(dtype_name(in.dtype)) + " and the output " +
                 std::string(dtype_name(out.dtype)),
             "use one dtype for both");
    }
    if (in.device != out.device) refuse("input and output are on different devices", "put both on one");
  }

  /// Input and output, one or both with a part for every rank.
  void parts() const {
    const Buffer &in = op_.input, &out = op_.output;
    same_kind();
    const auto size = static_cast<std::size_t>(group_.size);
    const bool exchanges = op_.kind == OpKind::kAllToAll;
    const bool scatters = op_.kind == OpKind::kScatter || op_.kind == OpKind::kReduceScatter;
    const Buffer& whole = scatters ? in : out;
    const Buffer& part = scatters ? out : in;
    if (whole.count % size != 0 || part.count != (exchanges ? whole.count : whole.count / size)) {
      refuse("the input has " + std::to_string(in.count) + " elements and the output " +
                 std::to_string(out.count) + ", with " + std::to_string(group_.size) + " ranks",
             exchanges  ? "both hold size() parts of the same count"
             : scatters ? "the input holds size() x the output"
                        : "the output holds size() x the input");
    }
    if (op_.count == 0 || !overlap() || (!exchanges && op_.in_place(group_.rank))) return;
    refuse_overlap(exchanges);
  }

  bool overlap() const {
    const std::size_t element = element_size(op_.dtype);
    const auto in = reinterpret_cast<std::uintptr_t>(op_.input.data),
               out = reinterpret_cast<std::uintptr_t>(op_.output.data);
    return in < out + op_.output.count * element && out < in + op_.input.count * element;
  }

  void reduction() const {
    const std::string name(dtype_name(op_.dtype));
    const auto by = [&] { return name + " by " + std::string(reduce_op_name(op_.how.op)); };
    if (const std::string why = why_not(op_.dtype, op_.how.op); !why.empty()) {
      refuse(by() + ": " + why, "docs/collectives/arithmetic.md lists the operations of each dtype");
    }
    if (op_.how.op != ReduceOp::kPremulSum) return;
    if (op_.kind == OpKind::kAllReduceTree) {
      refuse(by() +
                 ": scaled sums of leaves have other bits than sums of scaled leaves, so the result would "
                 "depend on how leaves are dealt",
             "scale the leaves and use sum");
    }
    if (!factor_fits(op_.dtype, op_.how.factor)) {
      char factor[32];
      std::snprintf(factor, sizeof factor, "%g", op_.how.factor);
      refuse(by() + ": " + name + " has no " + factor, "give a factor that the dtype has");
    }
  }

  const Op& op_;
  const GroupFacts& group_;
};

}  // namespace

void check_count(std::string_view call, std::size_t count) {
  if (count <= kMaxElements) return;
  throw_error({ErrorCode::kLimit, "cannot " + std::string(call),
               "a buffer of " + std::to_string(count) + " elements is larger than 2^40", "split it"});
}

void check_op(const Op& op, const GroupFacts& group) {
  Checks(op, group).run();
}

void check_apart(std::span<const Op> ops, const GroupFacts& group) {
  if (ops.size() < 2) return;
  struct Range {
    std::uintptr_t begin, end;
    std::size_t op;
    bool written;
  };
  std::vector<Range> ranges;
  const auto add = [&](const Buffer& buffer, std::size_t op, bool written) {
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer.data);
    if (buffer.count != 0)
      ranges.push_back({begin, begin + buffer.count * element_size(buffer.dtype), op, written});
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const bool gives =
        ops[i].kind == OpKind::kBroadcast && ops[i].peer == group.rank;  // its output is only read
    add(ops[i].input, i, false);
    add(ops[i].output, i, !gives);
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Range& a = ranges[i];
    for (std::size_t j = i + 1; j < ranges.size() && ranges[j].begin < a.end; ++j) {
      const Range& b = ranges[j];
      if (a.op == b.op || (!a.written && !b.written)) continue;
      const auto [first, second] = std::minmax(a.op, b.op);
      throw_error({ErrorCode::kBadInput, "cannot launch a batch",
                   "its operations " + std::to_string(first) + ", " + to_string(ops[first]) + ", and " +
                       std::to_string(second) + ", " + to_string(ops[second]) +
                       ", overlap, and one of them writes there",
                   "give each buffers of its own, or launch one after the other"});
    }
  }
}

void complete_op(Op& op, const GroupFacts& group) {
  const bool on_root = group.rank == op.peer;
  const bool takes_output = op.kind == OpKind::kScatter || op.kind == OpKind::kReduceScatter ||
                            op.kind == OpKind::kAllGatherV || op.kind == OpKind::kRecv;
  const Buffer& part = takes_output ? op.output : op.input;
  op.dtype = part.dtype;
  op.count = part.count;
  if (op.kind == OpKind::kAllToAll) op.count /= static_cast<std::size_t>(group.size);
  if ((op.kind == OpKind::kGather || op.kind == OpKind::kReduce) && !on_root) op.output = {};
  if (op.kind == OpKind::kScatter && !on_root) op.input = {};
  if (op.kind == OpKind::kAllReduceTree) op.input.device = op.output.device = group.device;
  if (!reduces(op.kind)) op.how = {};
  if (op.how.op != ReduceOp::kPremulSum) op.how.factor = 1;
}

namespace {

std::string text_of(const CallWords& words) {
  return to_string(OpWords{words[0], words[1], words[2]}) + " #" + std::to_string(words[3]);
}

/// A number for `count` elements that one rank gives another.
std::uint64_t number_of(int from, int to, std::uint64_t count) {
  std::uint64_t mixed = 0;
  for (const std::uint64_t word : {std::uint64_t(from) + 1, std::uint64_t(to) + 1, count + 1}) {
    mixed = (mixed ^ word) * 0x9e3779b97f4a7c15;
    mixed ^= mixed >> 29;
  }
  return mixed * 0xbf58476d1ce4e5b9;
}

std::uint64_t balance_of(const Op& op, int rank) {
  if (op.kind != OpKind::kAllToAllV) return 0;
  std::uint64_t balance = 0;
  for (std::size_t peer = 0; peer < op.counts.size(); ++peer) {
    balance += number_of(rank, static_cast<int>(peer), op.counts[peer]);
    balance -= number_of(static_cast<int>(peer), rank, op.from_counts[peer]);
  }
  return balance;
}

}  // namespace

CallWords call_words(const Op& op, int rank) {
  const OpWords call = encode(op);
  return {call[0], call[1], call[2], op.sequence, balance_of(op, rank)};
}

std::string difference(std::span<const CallWords> calls) {
  const CallWords& first = calls.front();
  std::uint64_t balance = 0;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const CallWords& other = calls[rank];
    balance += other.back();
    if (std::equal(other.begin(), other.end() - 1, first.begin())) continue;
    return "ranks called different operations: rank 0 " + text_of(first) + ", rank " + std::to_string(rank) +
           " " + text_of(other);
  }
  if (balance != 0) return "ranks give each other other counts than they take in " + text_of(first);
  return {};
}

}  // namespace troupe::collectives
