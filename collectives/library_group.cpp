#include "collectives/library_group.hpp"

#include <cstdio>
#include <cstring>
#include <new>

namespace troupe::collectives {
namespace {

constexpr std::align_val_t kAlignment{64};

class CompletedWork final : public Work {
 public:
  void wait() override {}
  bool wait_for(Duration /*limit*/) override { return true; }
  bool is_completed() override { return true; }
  std::exception_ptr exception() override { return nullptr; }
  std::optional<Duration> duration() override { return Duration::zero(); }
};

[[noreturn]] void bad_input(std::string what, std::string why, std::string todo) {
  throw_error({ErrorCode::kBadInput, std::move(what), std::move(why), std::move(todo)});
}

std::byte* bytes_of(const Buffer& buffer) {
  return static_cast<std::byte*>(buffer.data);
}

}  // namespace

std::string to_string(const LibraryCall& call) {
  std::string text = std::string(name_of(call.kind)) + "(";
  if (call.kind != OpKind::kBarrier) {
    if (reduces(call.kind)) text += std::string(reduce_op_name(call.how.op)) + ", ";
    text += std::to_string(call.count) + " x " + std::string(dtype_name(call.dtype));
  }
  switch (call.kind) {
    case OpKind::kReduce:
    case OpKind::kBroadcast:
    case OpKind::kGather:
    case OpKind::kScatter:
      text += ", root " + std::to_string(call.peer);
      break;
    case OpKind::kSend:
      text += ", to rank " + std::to_string(call.peer) + ", tag " + std::to_string(call.tag);
      break;
    case OpKind::kRecv:
      text += ", from rank " + std::to_string(call.peer) + ", tag " + std::to_string(call.tag);
      break;
    default:
      break;
  }
  return text + ") number " + std::to_string(call.sequence);
}

bool LibraryCall::in_place(int rank) const {
  const bool scatters = kind == OpKind::kScatter || kind == OpKind::kReduceScatter;
  const std::byte* whole = scatters ? input : output;
  const std::byte* part = scatters ? output : input;
  return whole != nullptr && part == whole + static_cast<std::size_t>(rank) * bytes();
}

bool AbortFlag::set(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (is_set()) return false;
  reason_ = reason.empty() ? "no reason was given" : reason;
  set_.store(true, std::memory_order_release);
  return true;
}

std::string AbortFlag::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

CollectiveAborted AbortFlag::error() const {
  return CollectiveAborted(
      {ErrorCode::kAborted, "the process group was aborted", reason(), "form the next generation"});
}

Timeout time_out(AbortFlag& flag, int rank, const LibraryCall& call, Duration timeout,
                 const std::string& detail) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%g", to_seconds(timeout));
  const std::string reason = "rank " + std::to_string(rank) + ": " + to_string(call) + ": no progress for " +
                             seconds + " s; " + detail;
  flag.set(reason);
  return Timeout({ErrorCode::kTimeout, "a collective timed out", reason,
                  "see what the other ranks do, or raise the group's timeout"});
}

std::shared_ptr<Work> completed_work() {
  return std::make_shared<CompletedWork>();
}

void LibraryGroup::Release::operator()(std::byte* at) const {
  ::operator delete(at, kAlignment);
}

std::vector<LeafInterval> checked_leaves(std::string_view backend, int rank, int size,
                                         std::vector<LeafInterval> leaves) {
  const auto refuse = [&](const std::string& why, const std::string& todo) {
    throw BadConfig("cannot make a process group of the backend " + std::string(backend), why, todo);
  };
  if (size < 1 || rank < 0 || rank >= size) {
    refuse("rank " + std::to_string(rank) + " of " + std::to_string(size) + " does not exist",
           "ranks count from 0 to size - 1");
  }
  if (leaves.empty()) return rank_leaves(size);
  if (leaves.size() != static_cast<std::size_t>(size)) {
    refuse(std::to_string(leaves.size()) + " leaf intervals for " + std::to_string(size) + " ranks",
           "give every rank's leaves");
  }
  int at = 0;
  for (const auto interval : leaves) {
    if (interval.begin != at || interval.size() < 1) {
      refuse("the ranks' leaves are not adjacent or a rank has none", "deal them with deal_leaves()");
    }
    at = interval.end;
  }
  return leaves;
}

LibraryGroup::LibraryGroup(int rank, int size, Generation generation, std::vector<LeafInterval> leaves)
    : rank_(rank), size_(size), generation_(generation), leaves_(std::move(leaves)) {}

TreeBuffer LibraryGroup::allocate_tree(std::size_t count, DType dtype) {
  TreeBuffer tree{.count = count, .dtype = dtype, .index = trees_++};
  const auto nodes = canonical_nodes(leaves(), leaves_.back().end);
  for (std::size_t i = 0; i < nodes.size(); ++i) tree.partials.push_back(bytes_of(allocate(count, dtype)));
  return tree;
}

Buffer LibraryGroup::allocate(std::size_t count, DType dtype) {
  Buffer buffer{.count = count, .dtype = dtype};
  check_count(call("allocate"), count);
  const std::size_t bytes = std::max<std::size_t>(1, count * element_size(dtype));
  memory_.emplace_back(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
  std::memset(memory_.back().get(), 0, bytes);
  buffer.data = memory_.back().get();
  return buffer;
}

void LibraryGroup::check_message(const char* name, std::string_view role, int other,
                                 const Buffer& buffer) const {
  check_rank(call(name), role, other);
  check_buffer(call(name), "buffer", buffer);
  if (other != rank_) return;
  throw BadConfig("cannot " + std::string(name),
                  "the backend " + std::string(backend()) + " has no messages from a rank to itself",
                  "copy the buffer");
}

std::shared_ptr<Work> LibraryGroup::start(LibraryCall call) {
  flag_->check();
  call.sequence = ++sequence_;
  if (call.kind != OpKind::kBarrier && call.count == 0) return completed_work();
  return launch(std::move(call));
}

std::shared_ptr<ExactReduction> LibraryGroup::exact(const LibraryCall& call) const {
  ExactReduction::Options options{.rank = rank_,
                                  .leaves = rank_leaves(size_),
                                  .dtype = call.dtype,
                                  .how = call.how,
                                  .partials = {call.input},
                                  .count = call.count,
                                  .result = call.output};
  if (call.kind == OpKind::kAllReduceTree) {
    options.leaves = leaves_;
    options.partials.assign(call.partials.begin(), call.partials.end());
  }
  if (call.kind == OpKind::kReduceScatter) {
    options.count *= static_cast<std::size_t>(size_);
    options.scattered = true;
  }
  return std::make_shared<ExactReduction>(std::move(options));
}

std::shared_ptr<Work> LibraryGroup::all_reduce_tree(const TreeBuffer& buffer, Reduction how) {
  check_reduction(call("all_reduce_tree"), buffer.dtype, how, true);
  if (buffer.partials.size() != canonical_nodes(leaves(), leaves_.back().end).size()) {
    bad_input("cannot reduce this tree", "it has " + std::to_string(buffer.partials.size()) + " partials",
              "allocate it with this group's allocate_tree");
  }
  for (std::byte* partial : buffer.partials) {
    check_buffer(call("all_reduce_tree"), "tree",
                 {.data = partial, .count = buffer.count, .dtype = buffer.dtype});
  }
  return start({.kind = OpKind::kAllReduceTree,
                .input = buffer.partials[0],
                .output = buffer.partials[0],
                .count = buffer.count,
                .dtype = buffer.dtype,
                .how = how,
                .partials = buffer.partials});
}

std::shared_ptr<Work> LibraryGroup::all_reduce(const Buffer& buffer, Reduction how) {
  check_buffer(call("all_reduce"), "buffer", buffer);
  check_reduction(call("all_reduce"), buffer.dtype, how);
  return start({.kind = OpKind::kAllReduce,
                .input = bytes_of(buffer),
                .output = bytes_of(buffer),
                .count = buffer.count,
                .dtype = buffer.dtype,
                .how = how});
}

std::shared_ptr<Work> LibraryGroup::reduce(const Buffer& buffer, Reduction how, int root) {
  check_rank(call("reduce"), "root", root);
  check_buffer(call("reduce"), "buffer", buffer);
  check_reduction(call("reduce"), buffer.dtype, how);
  return start({.kind = OpKind::kReduce,
                .input = bytes_of(buffer),
                .output = rank_ == root ? bytes_of(buffer) : nullptr,
                .count = buffer.count,
                .dtype = buffer.dtype,
                .how = how,
                .peer = root});
}

std::shared_ptr<Work> LibraryGroup::broadcast(const Buffer& buffer, int root) {
  check_rank(call("broadcast"), "root", root);
  check_buffer(call("broadcast"), "buffer", buffer);
  return start({.kind = OpKind::kBroadcast,
                .input = bytes_of(buffer),
                .output = bytes_of(buffer),
                .count = buffer.count,
                .dtype = buffer.dtype,
                .peer = root});
}

std::shared_ptr<Work> LibraryGroup::gather(const Buffer& input, const Buffer& output, int root) {
  check_rank(call("gather"), "root", root);
  check_buffer(call("gather"), "input", input);
  if (rank_ == root) check_parts(call("gather"), Parts::kGathered, input, output);
  return start({.kind = OpKind::kGather,
                .input = bytes_of(input),
                .output = rank_ == root ? bytes_of(output) : nullptr,
                .count = input.count,
                .dtype = input.dtype,
                .peer = root});
}

std::shared_ptr<Work> LibraryGroup::scatter(const Buffer& input, const Buffer& output, int root) {
  check_rank(call("scatter"), "root", root);
  check_buffer(call("scatter"), "output", output);
  if (rank_ == root) check_parts(call("scatter"), Parts::kScattered, input, output);
  return start({.kind = OpKind::kScatter,
                .input = rank_ == root ? bytes_of(input) : nullptr,
                .output = bytes_of(output),
                .count = output.count,
                .dtype = output.dtype,
                .peer = root});
}

std::shared_ptr<Work> LibraryGroup::all_gather(const Buffer& input, const Buffer& output) {
  check_parts(call("all_gather"), Parts::kGathered, input, output);
  return start({.kind = OpKind::kAllGather,
                .input = bytes_of(input),
                .output = bytes_of(output),
                .count = input.count,
                .dtype = input.dtype});
}

std::shared_ptr<Work> LibraryGroup::reduce_scatter(const Buffer& input, const Buffer& output, Reduction how) {
  check_parts(call("reduce_scatter"), Parts::kScattered, input, output);
  check_reduction(call("reduce_scatter"), input.dtype, how);
  return start({.kind = OpKind::kReduceScatter,
                .input = bytes_of(input),
                .output = bytes_of(output),
                .count = output.count,
                .dtype = output.dtype,
                .how = how});
}

std::shared_ptr<Work> LibraryGroup::all_to_all(const Buffer& input, const Buffer& output) {
  const std::size_t part = check_parts(call("all_to_all"), Parts::kExchanged, input, output);
  return start({.kind = OpKind::kAllToAll,
                .input = bytes_of(input),
                .output = bytes_of(output),
                .count = part,
                .dtype = input.dtype});
}

std::shared_ptr<Work> LibraryGroup::barrier() {
  return start({.kind = OpKind::kBarrier});
}

std::shared_ptr<Work> LibraryGroup::send(const Buffer& buffer, int to, std::uint32_t tag) {
  check_message("send", "to", to, buffer);
  return start({.kind = OpKind::kSend,
                .input = bytes_of(buffer),
                .count = buffer.count,
                .dtype = buffer.dtype,
                .peer = to,
                .tag = tag});
}

std::shared_ptr<Work> LibraryGroup::recv(const Buffer& buffer, int from, std::uint32_t tag) {
  check_message("recv", "from", from, buffer);
  return start({.kind = OpKind::kRecv,
                .output = bytes_of(buffer),
                .count = buffer.count,
                .dtype = buffer.dtype,
                .peer = from,
                .tag = tag});
}

}  // namespace troupe::collectives
