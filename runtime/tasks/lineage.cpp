#include "runtime/tasks/lineage.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::tasks {
namespace {

constexpr const char* kNobody = "nobody referred to it any more";

}  // namespace

Recompute recompute(const LostValue& lost) {
  if (!lost.has_recipe)
    return {false, "its function and arguments were dropped, since more than 1 GiB of such were kept"};
  if (lost.max_retries == 0) return {false, "its task has max_retries = 0"};
  const std::string used = std::to_string(lost.max_retries - lost.retries);
  const std::string most = std::to_string(lost.max_retries);
  if (lost.retries == 0) return {false, "its task ran again " + used + " times, as max_retries allows"};
  return {true, "its function and arguments are kept, and " + used + " of " + most + " retries are used"};
}

void Lineage::add(Number number, Task task, Actions& out) {
  Entry& entry = entries_[number];
  entry.retries = task.max_retries;
  entry.is_referred_to = task.has_result;
  bytes_ += task.bytes;
  entry.task = std::move(task);
  for (const Number argument : entry.task.arguments) entries_.at(argument).users.insert(number);
  begin(number, entry, out);
  settle(out);
  evict(out);
}

void Lineage::set_state(Entry& entry, State state) {
  const std::size_t tasks = entry.task.is_part ? 0 : 1;
  if (entry.state == State::kWaiting) waiting_ -= tasks, waiting_bytes_ -= entry.task.bytes;
  if (state == State::kWaiting) waiting_ += tasks, waiting_bytes_ += entry.task.bytes;
  entry.state = state;
  if (state == State::kMade || state == State::kFailed) entry.is_wanted = false;
}

/// Its arguments are held from now on until end().
void Lineage::begin(Number number, Entry& entry, Actions& out) {
  set_state(entry, State::kWaiting);
  for (const Number argument : entry.task.arguments) {
    if (entries_.at(argument).needed++ == 0) out.push_back(Hold{argument});
  }
  to_go_on_.push_back(number);
}

void Lineage::end(const Entry& entry, Actions& out) {
  for (const Number argument : entry.task.arguments) {
    std::size_t& needed = entries_.at(argument).needed;
    TROUPE_ASSERT(needed > 0, "an argument is held while a task needs it");
    if (--needed == 0) out.push_back(Release{argument});
  }
}

void Lineage::settle(Actions& out) {
  while (!to_go_on_.empty()) {
    const Number next = to_go_on_.back();
    to_go_on_.pop_back();
    go_on(next, out);
  }
}

/// One that waits runs when all its arguments are there, fails when one of them has, and wants the others.
void Lineage::go_on(Number number, Actions& out) {
  const auto at = entries_.find(number);
  if (at == entries_.end() || at->second.state != State::kWaiting) return;
  Entry& entry = at->second;
  bool all = true;
  for (const Number argument : entry.task.arguments) {
    Entry& its = entries_.at(argument);
    if (its.state == State::kLost) {
      if (entry.task.is_part && !entry.why_lost.empty()) its.why_lost = entry.why_lost;
      want(argument, its, out);
    }
    if (its.state == State::kFailed) return fail(number, entry, ErrorInfo(its.error), out);
    if (entry.is_wanted) hasten(argument, out);
    all = all && its.state == State::kMade;
  }
  if (!all) return;
  set_state(entry, State::kRunning);
  out.push_back(Submit{number});
}

void Lineage::made(Number number, Actions& out) {
  const auto at = entries_.find(number);
  if (at == entries_.end() || at->second.state != State::kRunning) return;
  Entry& entry = at->second;
  for (const Number user : entry.users) {
    Entry& part = entries_.at(user);
    if (part.task.is_part && part.state == State::kLost && part.is_referred_to) begin(user, part, out);
  }
  const bool is_kept = entry.is_referred_to || entry.needed > 0;
  const bool is_lost = std::exchange(entry.is_lost_early, false);
  set_state(entry, is_kept && !is_lost ? State::kMade : State::kLost);
  if (!is_kept) entry.why_lost = kNobody, entry.is_wanted = false;
  to_go_on_.insert(to_go_on_.end(), entry.users.rbegin(), entry.users.rend());
  end(entry, out);
  if (is_lost && is_kept) want(number, entry, out);  // whoever wanted it meanwhile does not say so again
  forget_unused(number, out);
  settle(out);
  evict(out);
}

void Lineage::fail(Number number, Entry& entry, const ErrorInfo& error, Actions& out) {
  const bool had_begun = entry.state == State::kWaiting || entry.state == State::kRunning;
  set_state(entry, State::kFailed);
  entry.error = error;
  out.push_back(Fail{number, error});
  to_go_on_.insert(to_go_on_.end(), entry.users.rbegin(), entry.users.rend());
  if (had_begun) end(entry, out);
  forget_unused(number, out);
}

void Lineage::failed(Number number, const ErrorInfo& error, Actions& out) {
  const auto at = entries_.find(number);
  if (at == entries_.end()) return;
  if (at->second.state != State::kRunning && at->second.state != State::kWaiting) return;
  fail(number, at->second, error, out);
  settle(out);
}

void Lineage::argument_lost(Number number, const ErrorInfo& why, bool is_computed_again, Actions& out) {
  const auto at = entries_.find(number);
  if (at == entries_.end() || at->second.state != State::kRunning) return;
  Entry& entry = at->second;
  const bool all_made =
      std::all_of(entry.task.arguments.begin(), entry.task.arguments.end(),
                  [&](Number argument) { return entries_.at(argument).state == State::kMade; });
  if (is_computed_again || !all_made) {
    set_state(entry, State::kWaiting);
    to_go_on_.push_back(number);
  } else if (entry.why_lost.empty()) {
    fail(number, entry, why, out);
  } else {
    const std::string reason = "an argument of its task is lost for good: " + why.what + ": " + why.why;
    fail(number, entry, not_again(entry, reason, why.todo), out);
  }
  settle(out);
}

void Lineage::lost(Number number, const std::string& why, Actions& out) {
  const auto at = entries_.find(number);
  if (at == entries_.end()) return;
  if (at->second.state == State::kRunning) {
    at->second.is_lost_early = true;
    at->second.why_lost = why;
  }
  if (at->second.state != State::kMade) return;
  set_state(at->second, State::kLost);
  at->second.why_lost = why;
  to_go_on_.insert(to_go_on_.end(), at->second.users.rbegin(), at->second.users.rend());
  settle(out);
}

void Lineage::dropped(Number number, Actions& out) {
  const auto at = entries_.find(number);
  if (at == entries_.end()) return;
  at->second.is_referred_to = false;
  if (at->second.state == State::kMade) {
    set_state(at->second, State::kLost);
    at->second.why_lost = kNobody;
    // Who reads it may have wanted it before this was heard, and does not say so again.
    if (at->second.needed > 0) want(number, at->second, out);
  }
  forget_unused(number, out);
  settle(out);
}

void Lineage::retried(Number number) {
  const auto at = entries_.find(number);
  if (at != entries_.end() && at->second.retries > 0) --at->second.retries;
}

void Lineage::want(Number number, Actions& out) {
  const auto at = entries_.find(number);
  if (at == entries_.end()) return;
  if (at->second.state == State::kLost) want(number, at->second, out);
  hasten(number, out);
  settle(out);
}

bool Lineage::is_wanted(Number number) const {
  const auto at = entries_.find(number);
  return at != entries_.end() && at->second.is_wanted;
}

/// Once, however often it is wanted. What it waits for follows when it looks at its arguments; what it may
/// wait for once it runs goes before it: else a chain runs from its end, a worker more waiting a link.
void Lineage::hasten(Number number, Actions& out) {
  std::vector<Number> left{number}, run;
  while (!left.empty()) {
    const Number next = left.back();
    left.pop_back();
    const auto at = entries_.find(next);
    if (at == entries_.end() || at->second.is_wanted) continue;
    const bool waits = at->second.state == State::kWaiting;
    if (!waits && at->second.state != State::kRunning) continue;
    at->second.is_wanted = true;
    const auto& mentions = at->second.task.mentions;
    left.insert(left.end(), mentions.begin(), mentions.end());
    if (waits) {
      to_go_on_.push_back(next);
    } else {
      run.push_back(next);
    }
  }
  std::sort(run.begin(), run.end());
  for (const Number one : run) out.push_back(Hasten{one});
}

void Lineage::want(Number number, Entry& entry, Actions& out) {
  const Recompute decision = recompute({entry.has_recipe, entry.retries, entry.task.max_retries});
  if (decision.again) {
    --entry.retries;
    return begin(number, entry, out);
  }
  fail(number, entry,
       not_again(entry, decision.reason, "submit the task again, or raise TaskOptions::max_retries"), out);
}

ErrorInfo Lineage::not_again(const Entry& entry, const std::string& reason, const std::string& todo) {
  return {ErrorCode::kObjectLost, "what " + entry.task.name + " computed is lost",
          entry.why_lost + "; it is not computed again: " + reason, todo};
}

void Lineage::drop_recipe(Number number, Entry& entry, Actions& out) {
  if (!std::exchange(entry.has_recipe, false)) return;
  bytes_ -= entry.task.bytes;
  out.push_back(Forget{number});
  const auto arguments = std::exchange(entry.task.arguments, {});
  for (const Number argument : arguments) {
    entries_.at(argument).users.erase(number);
    forget_unused(argument, out);
  }
}

/// Nobody can want it: whatever becomes of it. Its arguments may follow; a long chain takes no stack.
void Lineage::forget_unused(Number number, Actions& out) {
  std::vector<Number> next{number};
  while (!next.empty()) {
    const auto at = entries_.find(next.back());
    next.pop_back();
    if (at == entries_.end()) continue;
    Entry& entry = at->second;
    const bool is_over = entry.state != State::kWaiting && entry.state != State::kRunning;
    if (!is_over || entry.is_referred_to || !entry.users.empty()) continue;
    if (entry.has_recipe) {
      bytes_ -= entry.task.bytes;
      out.push_back(Forget{at->first});
    }
    for (const Number argument : entry.task.arguments) {
      entries_.at(argument).users.erase(at->first);
      next.push_back(argument);
    }
    entries_.erase(at);
  }
}

void Lineage::evict(Actions& out) {
  if (bytes_ <= most_bytes_) return;
  std::vector<Number> oldest;
  for (const auto& [number, entry] : entries_) oldest.push_back(number);
  for (const Number number : oldest) {
    if (bytes_ <= most_bytes_ / 2) return;
    const auto at = entries_.find(number);
    if (at == entries_.end()) continue;
    const bool is_over = at->second.state != State::kWaiting && at->second.state != State::kRunning;
    if (is_over) drop_recipe(number, at->second, out);
  }
}

}  // namespace troupe::tasks
