#include "collectives/library_group.hpp"

#include <cstring>
#include <new>
#include <numeric>

#include "collectives/texts.hpp"

namespace troupe::collectives {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

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
      {ErrorCode::kAborted, group_called(group_) + " was aborted", reason(), kAfterAbort});
}

Timeout time_out(AbortFlag& flag, int rank, const Op& op, Duration timeout, const std::string& detail) {
  const std::string reason = "rank " + std::to_string(rank) + ": " + numbered(op) + ": no progress for " +
                             seconds_text(timeout) + "; " + detail;
  flag.set(reason);
  return Timeout({ErrorCode::kTimeout, timed_out_in(flag.group()), reason,
                  "see what the other ranks do, or raise the group's timeout"});
}

void LibraryGroup::Release::operator()(std::byte* at) const {
  ::operator delete(at, kAlignment);
}

std::vector<std::byte*> LibraryGroup::reserve(std::size_t count, DType dtype, bool tree) {
  const std::size_t bytes = std::max<std::size_t>(1, count * element_size(dtype));
  std::vector<std::byte*> made(tree ? facts().partials().size() : 1);
  for (std::byte*& at : made) {
    std::unique_ptr<std::byte, Release> memory(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
    at = memory.get();
    std::memset(at, 0, bytes);
    if (tree) {
      trees_memory_.push_back(std::move(memory));
    } else {
      memory_[at] = {std::move(memory), bytes};
    }
  }
  return made;
}

ProcessGroup::Released LibraryGroup::release(std::byte* at) {
  const auto found = memory_.find(at);
  if (found == memory_.end()) return Released::kNotReserved;
  const std::span<const std::byte> memory(at, found->second.bytes);
  for (const auto& [work, op] : launched_) {
    if (!work->is_settled() && op.uses(memory)) return Released::kInFlight;
  }
  memory_.erase(found);
  if (memory_.empty()) launched_.clear();
  return Released::kYes;
}

void LibraryGroup::keep_memory() {
  for (auto& [at, memory] : memory_) (void)memory.at.release();
  for (auto& memory : trees_memory_) (void)memory.release();
}

void LibraryGroup::check_has(const Op& op) const {
  if (!is_message(op.kind) || op.peer != rank()) return;
  throw BadConfig("cannot " + std::string(name_of(op.kind)),
                  "the backend " + std::string(backend()) + " has no messages from a rank to itself",
                  "copy the buffer");
}

std::shared_ptr<Work> LibraryGroup::launch(std::span<const Op> operations) {
  std::vector<std::shared_ptr<Work>> works;
  for (const Op& op : operations) {
    flag_->check();
    const bool empty =
        op.kind != OpKind::kBarrier && op.kind != OpKind::kAllToAllV && !is_message(op.kind) && op.count == 0;
    works.push_back(empty ? completed_work() : launch_one(op));
    if (memory_.empty() || empty) continue;
    std::erase_if(launched_, [](const auto& one) { return one.first->is_settled(); });
    launched_.emplace_back(works.back(), op);
  }
  return joined(std::move(works));
}

std::shared_ptr<ExactReduction> LibraryGroup::exact(const Op& op) const {
  ExactReduction::Options options{.rank = rank(),
                                  .leaves = rank_leaves(size()),
                                  .dtype = op.dtype,
                                  .how = op.how,
                                  .partials = {op.in()},
                                  .count = op.count,
                                  .result = op.out()};
  if (op.kind == OpKind::kAllReduceTree) {
    options.leaves = facts().leaves;
    const auto& partials = tree_of(op).partials;
    options.partials.assign(partials.begin(), partials.end());
  }
  if (op.kind == OpKind::kReduceScatterV) {
    const auto own = op.counts.begin() + rank();
    const std::size_t before = std::accumulate(op.counts.begin(), own, std::size_t{0});
    options.part = Slice{before, before + *own};
  }
  if (op.kind == OpKind::kReduceScatter) {
    options.count *= static_cast<std::size_t>(size());
    options.scattered = true;
  }
  return std::make_shared<ExactReduction>(std::move(options));
}

}  // namespace troupe::collectives
