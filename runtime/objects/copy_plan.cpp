#include "runtime/objects/copy_plan.hpp"

#include <algorithm>

namespace troupe::objects {
namespace {

/// Between two questions to who cannot be reached. After all of them a node that died is known as dead.
constexpr Duration kBrokenPause = std::chrono::milliseconds(250);
/// Pauses double up to this.
constexpr Duration kLongestPause = std::chrono::milliseconds(250);

}  // namespace

void CopyPlan::begin(DirectOwners::Choice choice, Actions& out) {
  if (choice.way == DirectOwners::Way::kAsk) {
    out.emplace_back(std::in_place_type<AskAddress>);
  } else {
    addressed(std::move(choice), out);
  }
}

void CopyPlan::addressed(DirectOwners::Choice choice, Actions& out) {
  if (choice.way == DirectOwners::Way::kDirect) {
    out.push_back(FetchDirect{std::move(choice.at)});
  } else {
    go_on(out);
  }
}

void CopyPlan::direct_ended(const Result<void>& result, Actions& out) {
  if (result) {
    out.push_back(End{});
  } else {
    go_on(out);  // from its beginning, over the links, which know how its owner fares
  }
}

void CopyPlan::part_ended(std::optional<ErrorInfo> failed, Actions& out) {
  --under_way_;
  if (failed && !failed_) failed_ = std::move(failed);
  go_on(out);
}

/// Asks for what is missing, a few parts at a time. What failed has no further ones, and waits for those that
/// are under way: they are written into its memory.
void CopyPlan::go_on(Actions& out) {
  while (!failed_ && next_ < bytes_ && under_way_ < limits_.parts_under_way) {
    const Part part{next_, std::min(limits_.part_bytes, bytes_ - next_)};
    next_ += part.bytes;
    ++under_way_;
    out.push_back(AskPart{part});
  }
  if (under_way_ == 0) out.push_back(End{failed_});
}

LookAgain after_broken_link(int times, const ObjectLimits& limits) {
  if (times >= limits.broken_links)
    return {false, Duration::zero(), "no link reached it " + std::to_string(times) + " times"};
  return {true, kBrokenPause, "a link that broke is made again, or its node is declared dead"};
}

LookAgain after_gone_memory(int times, const ObjectLimits& limits, bool waits) {
  if (times >= limits.gone_memory && !waits) {
    return {false, Duration::zero(),
            "its memory was gone " + std::to_string(times) +
                " times before it could be mapped: the store is too small for what is in use"};
  }
  const Duration pause = std::chrono::milliseconds(1) * (1 << std::min(times, 10));
  return {true, times < 2 ? Duration::zero() : std::min(pause, kLongestPause),
          "it was spilled, freed or let go meanwhile, and its owner knows where it is"};
}

}  // namespace troupe::objects
