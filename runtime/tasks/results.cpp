// What tasks have computed, where they ran: a worker ends before long, and what it made must not end with it.
#include <cstring>
#include <map>

#include "runtime/host/method.hpp"
#include "runtime/objects/objects.hpp"
#include "runtime/tasks/tasks.hpp"

namespace troupe::tasks {
namespace {

using objects::HandlePtr;
using objects::ObjectName;

/// So long a worker waits for copies of what it owns, and for values that are still computed.
constexpr Duration kObjectsLeave = std::chrono::minutes(10);

}  // namespace

Outcome Tasks::computed_here(std::span<const wire::ByteView> values, bool is_pushed) {
  std::vector<Computed> results;
  std::vector<HandlePtr> large;
  try {
    const auto objects = gate_.objects();
    for (const wire::ByteView value : values) {
      if (value.size() <= objects::kInlineBytes) {
        results.push_back({{}, {value.begin(), value.end()}});
      } else {
        large.push_back(objects->put(value));
        results.push_back({large.back()->name(), {}});
      }
    }
    ProcessAddress to = gate_.address();
    if (is_pushed) {
      const std::lock_guard lock(mutex_);
      to = owner_;
    }
    for (const auto& object : large) objects->offer(object, to);
    return wire::encode(results);
  } catch (const Error& error) {
    return error.info();
  }
}

void Tasks::keep_results(TaskNumber task, std::uint32_t attempt, const Outcome& outcome) {
  auto results = outcome.ok() ? wire::decode<std::vector<Computed>>(*outcome) : outcome.error();
  if (results) return keep_results(task, attempt, *std::move(results), 0);
  task_answered(task, attempt, results.error());
}

/// From the one at `next` on; those before are kept.
void Tasks::keep_results(TaskNumber task, std::uint32_t attempt, std::vector<Computed> results,
                         std::size_t next) {
  while (next < results.size() && !results[next].name) ++next;
  if (next == results.size()) {
    if (task_answered(task, attempt, wire::encode(results))) return;
    for (const auto& one : results) arrived(one.name);
    return;
  }
  const ObjectName name = results[next].name;
  keep(name, 0,
       [weak = weak_from_this(), task, attempt, results = std::move(results),
        next](Result<HandlePtr> at) mutable {
         const auto self = weak.lock();
         if (self == nullptr) return;
         if (!at) {  // it died with its worker or with the keeper, and can be computed anew
           for (std::size_t i = 0; i < next; ++i) self->arrived(results[i].name);
           // The worker has offered the others, and would hold them as long as it lives.
           for (std::size_t i = next; i < results.size(); ++i) {
             if (results[i].name) self->gate_.objects()->hold(results[i].name);  // and drop it
           }
           ErrorInfo why = at.error();
           if (why.code != ErrorCode::kLimit) why.code = ErrorCode::kActorDied;
           self->task_answered(task, attempt, why);
           return;
         }
         results[next].name = (*at)->name();
         {
           const std::lock_guard lock(self->lineage_mutex_);
           self->arrived_[(*at)->name()] = *at;
         }
         self->keep_results(task, attempt, std::move(results), next + 1);
       });
}

void Tasks::keep(const ObjectName& name, int tries, objects::Objects::OnPlace then) {
  const bool is_own = name.owner == gate_.address();
  if (!is_own && name.owner.node == gate_.address().node)
    return gate_.objects()->keep_at(gate_.address(), name, std::move(then));
  // Between two tries, too: the link that broke took the worker's offer with it.
  auto held = gate_.objects()->hold(name);
  find_keeper_(name.owner.node, [weak = weak_from_this(), name, tries, is_own, held = std::move(held),
                                 then = std::move(then)](Result<ProcessAddress> keeper) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    // A node that drains starts no such process: who wants the result keeps it.
    const ProcessAddress home = is_own ? self->owner_of_worker() : self->gate_.address();
    if (!keeper && !home.process) return then(keeper.error());
    self->gate_.objects()->keep_at(
        keeper ? *keeper : home, name, [weak, name, tries, held, then](Result<HandlePtr> kept) {
          const auto here = weak.lock();
          const bool broke = !kept && kept.error().code == ErrorCode::kUnavailable;
          if (here == nullptr || !broke) return then(std::move(kept));
          const auto next = objects::after_broken_link(tries, here->gate_.objects()->limits());
          if (!next.again) return then(std::move(kept));
          here->gate_.later(next.after, [weak, name, tries, held, then] {
            if (const auto again = weak.lock()) again->keep(name, tries + 1, then);
          });
        });
  });
}

/// Takes the reference to a result that was kept.
HandlePtr Tasks::arrived(const ObjectName& name) {
  const std::lock_guard lock(lineage_mutex_);
  auto found = arrived_.extract(name);
  return found.empty() ? nullptr : std::move(found.mapped());
}

/// The objects of so many results. Throws what is wrong with them.
std::vector<HandlePtr> Tasks::take_results(const Outcome& outcome, std::size_t count) {
  const auto computed = wire::decode<std::vector<Computed>>(*outcome).value();
  const auto objects = gate_.objects();
  std::vector<HandlePtr> values;  // all that were kept, first: whatever fails below lets go of them
  for (const auto& one : computed) {
    const auto kept = arrived(one.name);
    values.push_back(one.name ? objects->accept(one.name) : nullptr);
  }
  if (computed.size() != count)
    throw BadInput({ErrorCode::kBadInput, "refused what a task computed", "it has another number of results",
                    "both processes must run the same executable"});
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] == nullptr) values[i] = objects->put(wire::Bytes(computed[i].value));
  }
  return values;
}

// References in answers.

void Tasks::leave_objects(detail::EncodedAnswer& answer) {
  if (!answer.outcome.ok()) return;
  const auto name_of = [](const auto& reference) {
    return static_cast<const objects::Handle*>(reference.get())->name();
  };
  std::map<ObjectName, HandlePtr> left;
  for (const auto& reference : answer.refers_to) {
    const ObjectName name = name_of(reference);
    if (name.owner != gate_.address() || left.contains(name)) continue;
    auto kept = keep_own(name);
    if (!kept) {
      ErrorInfo why = kept.error();
      const bool is_keeper_lost = why.code == ErrorCode::kActorDied || why.code == ErrorCode::kUnavailable;
      if (why.origin.empty() && is_keeper_lost) {  // the task is tried again, as when its worker dies
        why.why = "the process that was to keep what it answered is gone: " + why.why;
      } else if (why.origin.empty()) {  // with an origin it is not taken for that of an argument
        why.origin = "an object that a task's answer refers to";
      }
      answer = {std::move(why), {}, {}};
      return;
    }
    left.emplace(name, *std::move(kept));
  }
  wire::Bytes bytes = *answer.outcome;
  objects::BorrowScope borrows;  // not before: to decode the arguments of the tasks that ran here ends it
  for (auto& [name, there] : left) there = gate_.objects()->hold(there->name());
  for (std::size_t i = 0; i < answer.refers_to.size(); ++i) {
    const auto there = left.find(name_of(answer.refers_to[i]));
    if (there == left.end()) continue;
    std::memcpy(bytes.data() + answer.names_at[i], &there->second->name(), sizeof(ObjectName));
    answer.refers_to[i] = there->second;
  }
  const auto known = std::make_shared<CallState>(waiter_);
  borrows.when_known([known] { known->resolve(wire::Bytes{}); });
  known->wait(kObjectsLeave);
  answer.outcome = std::move(bytes);
}

/// Waits as a task does: meanwhile it runs its own tasks, one of which may compute the object.
Result<HandlePtr> Tasks::keep_own(const ObjectName& name) {
  const auto done = std::make_shared<CallState>(waiter_);
  const auto kept = std::make_shared<Result<HandlePtr>>(HandlePtr());
  keep(name, 0, [done, kept](Result<HandlePtr> at) {
    if (done->ready()) return;
    *kept = std::move(at);
    done->resolve(wire::Bytes{});
  });
  if (done->wait(kObjectsLeave)) return *kept;
  const ErrorInfo late{ErrorCode::kTimeout, "an answer refers to an object that did not come",
                       "within 10 minutes", "wait for it in the task"};
  done->resolve(late);
  return late;
}

}  // namespace troupe::tasks
