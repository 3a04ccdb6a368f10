#include "collectives/process_group.hpp"

#include <algorithm>

#include "collectives/check_op.hpp"
#include "collectives/flight/flight_recorder.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

[[noreturn]] void refuse_without_origin(const char* operation) {
  throw BadConfig(std::string("cannot ") + operation, "the group was not made by init_process_group",
                  "make it with init_process_group, or leave its members to what made it");
}

/// Whether a launch threw this for what it was given, and not for how the group is.
bool is_callers_fault(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kBadConfig || error.code() == ErrorCode::kBadInput ||
           error.code() == ErrorCode::kLimit;
  } catch (...) {
    return true;
  }
}

}  // namespace

std::vector<LeafInterval> checked_leaves(std::string_view backend, int rank, int size,
                                         std::vector<LeafInterval> leaves) {
  const auto refuse = [&](const std::string& why, const std::string& todo) {
    throw BadConfig("cannot make a process group of the backend " + std::string(backend), why, todo);
  };
  if (size < 1 || size > kMaxGroupRanks || rank < 0 || rank >= size) {
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

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) {
  if (!origin_) refuse_without_origin("new_group");
  fork_guard_.check("process group");
  return origin_->new_group(*this, ranks);
}
std::shared_ptr<ProcessGroup> ProcessGroup::rebuild() {
  if (!origin_) refuse_without_origin("rebuild");
  fork_guard_.check("process group");
  return origin_->rebuild(*this);
}

void ProcessGroup::refuse(std::string_view operation) const {
  throw BadConfig("cannot " + std::string(operation),
                  "the backend " + std::string(backend()) + " does not have it",
                  "use the backend native, or another that has it (docs/collectives.md lists them)");
}
std::vector<std::byte*> ProcessGroup::reserve(std::size_t, DType, bool tree) {
  refuse(tree ? "allocate_tree" : "allocate");
}
ProcessGroup::Released ProcessGroup::release(std::byte*) {
  refuse("deallocate");
}

void ProcessGroup::throw_if_aborted() const {
  std::string reason = abort_reason();
  if (reason.empty()) return;
  throw CollectiveAborted(
      {ErrorCode::kAborted, group_called(facts_.name) + " was aborted", std::move(reason), kAfterAbort});
}

void ProcessGroup::check_allocation(std::string_view call, std::size_t count, DType dtype) const {
  fork_guard_.check("process group");
  if (!is_known(dtype)) {
    throw_error({ErrorCode::kBadInput, "cannot " + std::string(call),
                 "there is no dtype " + std::to_string(static_cast<int>(dtype)),
                 "give one that DType names"});
  }
  check_count(call, count);
  // Others do not allocate any more, so that the next operation on it would be the first to say so.
  throw_if_aborted();
}

Buffer ProcessGroup::allocate(std::size_t count, DType dtype) {
  check_allocation("allocate", count, dtype);
  const Buffer made{reserve(count, dtype, false).front(), count, dtype, facts_.device, nullptr};
  allocated_[made.data] = made.count * element_size(dtype);
  return made;
}

void ProcessGroup::deallocate(const Buffer& buffer) {
  fork_guard_.check("process group");
  if (!abort_reason().empty()) return;  // somebody may still be at it
  const auto had = allocated_.find(buffer.data);
  const std::size_t bytes = is_known(buffer.dtype) ? buffer.count * element_size(buffer.dtype) : 0;
  if (had != allocated_.end() && had->second != bytes)
    throw_error(
        {ErrorCode::kBadInput, "cannot deallocate a buffer of " + group_called(facts_.name),
         "it has " + std::to_string(bytes) + " bytes, and its allocate() gave " + std::to_string(had->second),
         "give all that allocate() gave, at once"});
  const Released released =
      buffer.data == nullptr ? Released::kNotReserved : release(static_cast<std::byte*>(buffer.data));
  if (released == Released::kYes) {
    if (had != allocated_.end()) allocated_.erase(had);
    return;
  }
  const bool is_used = released == Released::kInFlight;
  throw_error(
      {ErrorCode::kBadInput, "cannot deallocate a buffer of " + group_called(facts_.name),
       is_used ? "an operation on it is in flight" : "its allocate() did not give it, or it was given back",
       is_used ? "wait() for its Work first" : "give what allocate() gave, once"});
}

TreeBuffer ProcessGroup::allocate_tree(std::size_t count, DType dtype) {
  check_allocation("allocate_tree", count, dtype);
  return trees_.emplace_back(TreeBuffer{.partials = reserve(count, dtype, true),
                                        .count = count,
                                        .dtype = dtype,
                                        .index = static_cast<int>(trees_.size())});
}

void ProcessGroup::check_tree(const Op& op) const {
  const bool known = op.peer >= 0 && static_cast<std::size_t>(op.peer) < trees_.size();
  if (known && tree_of(op).count == op.count && tree_of(op).dtype == op.dtype &&
      tree_of(op).partials.front() == op.in()) {
    return;
  }
  throw_error({ErrorCode::kBadInput, "cannot all_reduce_tree", "the buffer was not allocated by this group",
               "use what its allocate_tree returned, unchanged"});
}

void ProcessGroup::monitored_barrier(Duration limit) {
  if (facts_.backend != "native") refuse("monitored_barrier");
  batch({Op::barrier().within(limit)})->wait();
}

std::shared_ptr<Work> ProcessGroup::batch(std::span<const Op> operations) {
  std::vector<Op> ops(operations.begin(), operations.end());
  return ops.empty() ? completed_work() : start(std::span(ops));
}

std::shared_ptr<Work> ProcessGroup::start(std::span<Op> ops) {
  fork_guard_.check("process group");
  // Remembered before the launch, which may wait: a dump then shows what the rank is at.
  const std::uint64_t before = collectives_;
  std::uint64_t first = 0;
  const Instant launched_at = recorder_ ? MonotonicClock().now() : Instant{};
  for (Op& op : ops) {
    complete_op(op, facts_);
    op.sequence = is_message(op.kind) ? 0 : ++collectives_;
    if (!recorder_) continue;
    const std::uint64_t number = recorder_->launch(op, launched_at);
    if (first == 0) first = number;
  }
  bool checked = false;
  try {
    for (const Op& op : ops) {
      check_op(op, facts_);
      check_has(op);
      if (op.kind == OpKind::kAllReduceTree) check_tree(op);
    }
    check_apart(ops, facts_);
    checked = true;
    auto work = launch(ops);
    if (recorder_) work->remember(recorder_, first, ops.size(), launched_at);
    return work;
  } catch (...) {
    const auto thrown = std::current_exception();
    collectives_ = before;
    if (checked && ops.size() > 1) stop("a batch was launched in part: " + text_of(thrown));
    for (std::size_t i = ops.size(); recorder_ && i-- > 0;) {
      recorder_->refused(first + i, text_of(thrown), !is_callers_fault(thrown));
    }
    try {
      if (checked) await_quiet();  // a part of it may be at buffers that are gone once this throws
    } catch (const std::exception&) {
      // What the launch threw says more.
    }
    throw;
  }
}

void ProcessGroup::abort(const std::string& reason) {
  fork_guard_.check("process group");
  const std::string before = recorder_ ? abort_reason() : std::string();
  stop(reason.empty() ? "no reason was given" : reason);  // the others wait for this, and for no dump
  if (!recorder_) return;
  recorder_->dump_failure(before.empty() ? "this rank aborted the group: " + reason
                                         : "this rank left the group, which was aborted: " + before);
}

}  // namespace troupe::collectives
