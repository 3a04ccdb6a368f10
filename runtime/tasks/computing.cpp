// Tasks whose results are objects, and tasks that read such objects: the shell around Lineage.
#include <algorithm>

#include "runtime/core/log.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"
#include "runtime/tasks/tasks.hpp"

namespace troupe::tasks {
namespace {

using objects::HandlePtr;
using objects::ObjectName;

/// A task that waits looks so often whether it can go on, while one of its own comes.
constexpr Duration kLook = std::chrono::milliseconds(50);

bool is_argument_lost(const ErrorInfo& why) {
  return why.code == ErrorCode::kObjectLost && why.origin.empty();
}

/// The computed objects whose values a task reads.
std::vector<ObjectName> reads(const TaskSpec& spec) {
  if (spec.args.kept.empty()) return {};
  auto given = objects::Given::read(spec.args.bytes);
  if (!given) return {};
  std::erase_if(given->names, [](const ObjectName& name) { return !name.is_computed(); });
  return std::move(given->names);
}

}  // namespace

// Lineage.

std::vector<HandlePtr> Tasks::compute(TaskSpec spec) {
  wait_for_room(spec.name);
  const auto objects = gate_.objects();
  const auto own = objects->reserve();
  if (spec.results == 1) {
    start(own->name().number, std::move(spec), nullptr);
    return {own};
  }
  // Nobody refers to the task's own object any more: it stands for all its results, which are parts of it.
  std::vector<HandlePtr> parts;
  for (std::size_t i = 0; i < spec.results; ++i) parts.push_back(objects->reserve());
  start(own->name().number, std::move(spec), nullptr, parts);
  return parts;
}

/// Null: it reads no object that a task computes.
std::shared_ptr<CallState> Tasks::submit_when_computed(TaskSpec& spec) {
  if (reads(spec).empty()) return nullptr;
  wait_for_room(spec.name);
  auto answer = std::make_shared<CallState>(waiter_);
  const auto number = gate_.objects()->next_number();
  answer->set_on_cancel([weak = weak_from_this(), number](Duration grace) {
    if (const auto self = weak.lock()) self->cancel_entry(number, grace);
  });
  start(number, std::move(spec), answer);
  return answer;
}

/// A task does not wait: it could wait for what it is to do itself.
void Tasks::wait_for_room(std::string_view name) {
  const bool may_wait = thread_may_wait() && this_thread.helper == nullptr;
  std::unique_lock lock(mutex_);
  while (!closed_ && !(pool_.has_room() && lineage_has_room_)) {
    if (!may_wait) {
      throw LimitExceeded({ErrorCode::kLimit, "cannot submit " + std::string(name),
                           "too many tasks of this process wait, and this thread must not wait for room",
                           "submit fewer at a time, or from the main program, which is held back"});
    }
    ++waiting_for_room_;
    room_.wait(lock);
    --waiting_for_room_;
  }
}

void Tasks::start(Lineage::Number number, TaskSpec spec, std::shared_ptr<CallState> answer,
                  const std::vector<HandlePtr>& parts) {
  Recipe recipe;
  Lineage::Task task{std::string(spec.name),
                     {},
                     spec.args.bytes.size() + spec.args.object_bytes,
                     spec.retries,
                     answer == nullptr};
  if (thread_may_wait() && this_thread.helper != nullptr) recipe.frame = this_thread.helper->number();
  recipe.answer = std::move(answer);
  const auto names = reads(spec);
  Decided decided;
  {
    const std::lock_guard lock(lineage_mutex_);
    for (const ObjectName& name : names) {
      if (name.owner != gate_.address()) {
        recipe.others.push_back(name);
        continue;
      }
      // All that a call keeps are handles.
      const auto kept = std::find_if(spec.args.kept.begin(), spec.args.kept.end(), [&](const auto& one) {
        return std::static_pointer_cast<const objects::Handle>(one)->name() == name;
      });
      if (kept == spec.args.kept.end() || !lineage_.contains(name.number)) continue;
      decided.kept.push_back(std::move(*kept));  // from then on the machine says how long it is held
      spec.args.kept.erase(kept);
      auto& arguments = task.arguments;
      if (std::find(arguments.begin(), arguments.end(), name.number) == arguments.end())
        arguments.push_back(name.number);
    }
    recipe.reads = task.arguments;
    for (const auto& one : spec.args.kept) {
      const ObjectName& name = std::static_pointer_cast<const objects::Handle>(one)->name();
      if (name.owner == gate_.address()) task.mentions.push_back(name.number);
    }
    Lineage::Task part{task.name, {number}, 0, spec.retries, true, true};
    recipe.spec = std::move(spec);
    if (recipe.frame != 0) coming_[recipe.frame].insert(number);
    recipes_.emplace(number, std::move(recipe));
    lineage_.add(number, std::move(task), decided.actions);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Recipe its;
      its.part_of = number;
      its.part = i;
      recipes_.emplace(parts[i]->name().number, std::move(its));
      lineage_.add(parts[i]->name().number, part, decided.actions);
    }
    decide(std::move(decided));
  }
  carry_out_decided();
}

void Tasks::decide(Decided decided) {
  if (!decided.actions.empty() || !decided.kept.empty()) decided_.push_back(std::move(decided));
  const PoolLimits limits;
  const bool has_room = lineage_.waiting() < limits.queued && lineage_.waiting_bytes() < limits.queued_bytes;
  if (lineage_has_room_.exchange(has_room) || !has_room) return;
  const std::lock_guard lock(mutex_);
  room_.notify_all();
}

template <class Change>
void Tasks::change(Change change) {
  {
    const std::lock_guard lock(lineage_mutex_);
    Decided decided;
    change(lineage_, decided.actions);
    decide(std::move(decided));
  }
  carry_out_decided();
}

/// One after another in the order in which they were decided, in one thread at a time.
void Tasks::carry_out_decided() {
  const NoWaitScope no_wait;
  std::unique_lock lock(lineage_mutex_);
  if (std::exchange(acts_, true)) return;  // that thread goes on
  while (!decided_.empty()) {
    auto next = std::make_optional(std::move(decided_.front()));
    decided_.pop_front();
    lock.unlock();
    for (const auto& action : next->actions) {
      try {
        std::visit([this](const auto& a) { act(a); }, action);
      } catch (const std::exception& error) {  // of somebody's callback
        log(LogLevel::kError, std::string("a callback of a task threw: ") + error.what());
      }
    }
    next.reset();  // handles go without the lock
    lock.lock();
  }
  acts_ = false;
}

void Tasks::watch_objects() {
  objects::Objects::Hooks hooks;
  hooks.wanted = [weak = weak_from_this()](std::uint64_t number) {
    if (const auto self = weak.lock()) self->change([&](Lineage& l, auto& out) { l.want(number, out); });
  };
  hooks.lost = [weak = weak_from_this()](std::uint64_t number, const std::string& why) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    bool is_known = false;
    self->change([&](Lineage& l, auto& out) { is_known = l.contains(number), l.lost(number, why, out); });
    if (!is_known)
      self->gate_.objects()->computed(
          number, ErrorInfo{ErrorCode::kObjectLost, "what a task computed is lost",
                            why + "; it is not computed again: its function and arguments were dropped", ""});
  };
  // Later: references end in any thread, with any lock held.
  hooks.freed = [weak = weak_from_this(), gate = &gate_](std::uint64_t number) {
    gate->later(Duration::zero(), [weak, number] {
      if (const auto self = weak.lock()) self->change([&](Lineage& l, auto& out) { l.dropped(number, out); });
    });
  };
  hooks.why_waits = [weak = weak_from_this()](std::uint64_t number) {
    const auto self = weak.lock();
    return self == nullptr ? std::string() : self->why_no_value(number);
  };
  gate_.objects()->set_hooks(std::move(hooks));
}

void Tasks::act(const Lineage::Hold& hold) {
  auto handle = gate_.objects()->hold_computed(hold.number);
  const std::lock_guard lock(lineage_mutex_);
  held_[hold.number] = std::move(handle);
}

void Tasks::act(const Lineage::Release& release) {
  HandlePtr gone;  // goes without the lock, as these do
  std::vector<HandlePtr> parts;
  const std::lock_guard lock(lineage_mutex_);
  if (auto found = held_.extract(release.number)) gone = std::move(found.mapped());
  if (auto found = parts_.extract(release.number)) parts = std::move(found.mapped());
}

void Tasks::act(const Lineage::Forget& forget) {
  std::optional<Recipe> gone;  // without the lock: its arguments may go with it
  const std::lock_guard lock(lineage_mutex_);
  if (const auto at = recipes_.find(forget.number); at != recipes_.end()) {
    has_come(at->second, forget.number);
    gone = std::move(at->second);
    recipes_.erase(at);
  }
}

void Tasks::act(const Lineage::Fail& fail) {
  std::shared_ptr<CallState> answer;
  {
    const std::lock_guard lock(lineage_mutex_);
    if (const auto at = recipes_.find(fail.number); at != recipes_.end()) {
      answer = at->second.answer;
      has_come(at->second, fail.number);
    }
  }
  if (answer != nullptr) {
    answer->resolve(fail.error);
  } else {
    gate_.objects()->computed(fail.number, fail.error);
  }
}

void Tasks::act(const Lineage::Hasten& hasten) {
  const std::lock_guard lock(lineage_mutex_);
  // One that waits for others' objects has no task yet: it is hastened when it has.
  if (const auto at = recipes_.find(hasten.number); at != recipes_.end()) this->hasten(at->second);
}

void Tasks::hasten(const Recipe& recipe) {
  const std::lock_guard lock(mutex_);
  pool_.hasten(recipe.task);
}

void Tasks::act(const Lineage::Submit& submit) {
  run_entry(submit.number, 0);
}

/// Once the others' objects that it reads have values, from the one at `next` on.
void Tasks::run_entry(Lineage::Number number, std::size_t next) {
  TaskSpec spec;
  std::uint64_t frame = 0;
  std::shared_ptr<CallState> answer;
  std::optional<ObjectName> waits_for;
  Lineage::Number part_of = 0;
  std::size_t part = 0;
  {
    const std::lock_guard lock(lineage_mutex_);
    const auto at = recipes_.find(number);
    if (at == recipes_.end()) return;  // it was cancelled
    const Recipe& recipe = at->second;
    if (recipe.part_of != 0) {
      part_of = recipe.part_of;
      part = recipe.part;
    } else if (next < recipe.others.size()) {
      waits_for = recipe.others[next];
    } else {
      spec = recipe.spec;
      spec.entry = number;
      if (lineage_.contains(number)) spec.retries = lineage_.retries(number);
      for (const auto argument : recipe.reads) {
        const auto held = held_.find(argument);
        if (held == held_.end()) return;  // it failed
        spec.args.kept.push_back(held->second);
      }
    }
    frame = recipe.frame;
    answer = recipe.answer;
  }
  if (part_of != 0) return take_part(number, part_of, part);
  if (waits_for) {
    return gate_.objects()->when_computed(
        *waits_for, [weak = weak_from_this(), number, next](Result<void> there) {
          const auto self = weak.lock();
          if (self == nullptr) return;
          if (there) return self->run_entry(number, next + 1);
          self->change([&](Lineage& l, auto& out) { l.argument_lost(number, there.error(), false, out); });
        });
  }
  const std::size_t results = spec.results;
  const auto [task, run] = submit_ready(std::move(spec), frame);
  {
    const std::lock_guard lock(lineage_mutex_);
    if (const auto at = recipes_.find(number); at != recipes_.end()) {
      at->second.task = task;
      at->second.run = run;
      if (lineage_.is_wanted(number)) hasten(at->second);
      has_come(at->second, number);
    }
  }
  if (answer != nullptr && answer->ready()) run->cancel(cancelled(), Duration::zero());
  if (answer != nullptr) run->passes_on_to(answer);
  run->watch(this, [weak = weak_from_this(), run = run, number, answer, results] {
    if (const auto self = weak.lock()) self->ended(number, answer, results, *run);
  });
}

/// One of the results of task `of` has its value.
void Tasks::take_part(Lineage::Number number, Lineage::Number of, std::size_t part) {
  HandlePtr value;
  {
    const std::lock_guard lock(lineage_mutex_);
    const auto at = parts_.find(of);
    if (at != parts_.end()) value = at->second[part];
  }
  if (value != nullptr) {
    gate_.objects()->computed(number, std::move(value));
    return change([&](Lineage& l, auto& out) { l.made(number, out); });
  }
  // They were let go just before somebody wanted one again.
  change([&](Lineage& l, auto& out) {
    l.lost(of, "its results were let go", out);
    l.argument_lost(number, {}, true, out);
  });
}

void Tasks::has_come(const Recipe& recipe, Lineage::Number number) {
  const auto at = coming_.find(recipe.frame);
  if (at == coming_.end()) return;
  at->second.erase(number);
  if (at->second.empty()) coming_.erase(at);
  has_come_.notify_all();
}

bool Tasks::wait_for_own(std::uint64_t frame, Instant deadline) {
  std::unique_lock lock(lineage_mutex_);
  const Instant now = clock_.now();
  if (!coming_.contains(frame) || now >= deadline) return false;
  has_come_.wait_for(lock, std::min<Duration>(kLook, deadline - now));
  return true;
}

void Tasks::ended(Lineage::Number number, const std::shared_ptr<CallState>& answer, std::size_t results,
                  CallState& run) {
  const ErrorInfo* why = run.failure();
  if (why != nullptr && is_argument_lost(*why)) {
    const bool again = objects::is_not_computed_yet(*why);
    return change([&](Lineage& l, auto& out) { l.argument_lost(number, *why, again, out); });
  }
  if (why != nullptr) return change([&](Lineage& l, auto& out) { l.failed(number, *why, out); });
  if (results > 0) {
    try {
      auto values = take_results(run.outcome(), results);
      if (results == 1) {
        gate_.objects()->computed(number, std::move(values[0]));
      } else {
        const std::lock_guard lock(lineage_mutex_);
        parts_[number].swap(values);  // what was there goes without the lock
      }
    } catch (const Error& error) {
      return change([&](Lineage& l, auto& out) { l.failed(number, error.info(), out); });
    }
  }
  change([&](Lineage& l, auto& out) { l.made(number, out); });
  if (answer != nullptr) answer->resolve_as(run);
}

std::string Tasks::why_no_value(Lineage::Number number) const {
  std::shared_ptr<CallState> run;
  {
    const std::lock_guard lock(lineage_mutex_);
    auto entry = recipes_.find(number);
    if (entry != recipes_.end() && entry->second.part_of != 0) entry = recipes_.find(entry->second.part_of);
    if (entry == recipes_.end()) return "";
    run = entry->second.run;
    if (run == nullptr) return "for arguments that other tasks compute";
  }
  return why_waits(*run);
}

ErrorInfo Tasks::cancelled() {
  return {ErrorCode::kCancelled, "a task has no answer", "it was cancelled", ""};
}

void Tasks::cancel_entry(Lineage::Number number, Duration grace) {
  std::shared_ptr<CallState> run;
  {
    const std::lock_guard lock(lineage_mutex_);
    if (const auto at = recipes_.find(number); at != recipes_.end()) run = at->second.run;
  }
  // One that is over came too early: its arguments are computed again, for nobody.
  if (run != nullptr && !run->ready()) return run->cancel(cancelled(), grace);
  change([&](Lineage& l, auto& out) { l.failed(number, cancelled(), out); });
}

void Tasks::fail_recipes(const ErrorInfo& why) {
  std::vector<std::shared_ptr<CallState>> answers;
  {
    const std::lock_guard lock(lineage_mutex_);
    for (const auto& [number, recipe] : recipes_) {
      if (recipe.answer != nullptr) answers.push_back(recipe.answer);
    }
    coming_.clear();
    has_come_.notify_all();
  }
  for (const auto& answer : answers) answer->resolve(why);
}

}  // namespace troupe::tasks
