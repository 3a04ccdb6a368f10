#include "runtime/host/actor_table.hpp"

#include <unistd.h>

#include <thread>
#include <utility>

#include "runtime/core/log.hpp"
#include "runtime/host/process_gate.hpp"

namespace troupe {
namespace {

/// A constructor that runs at three looks is told: after 10 to 15 s.
constexpr Duration kLook = std::chrono::seconds(5);
constexpr int kLooks = 3;

}  // namespace

void ActorTable::start(ActorStart start, OnActorReady on_ready, OnActorEnd on_end,
                       caf::execution_unit* unit) {
  const ActorId id = start.address.actor;
  bool taken = false;
  {
    const std::lock_guard lock(mutex_);
    taken = ended_.find(id) != nullptr || living_.contains(id);
  }
  if (taken) {
    return on_ready(ErrorInfo{ErrorCode::kRefused, "cannot construct an actor", "its id was used before",
                              "spawn it anew"});
  }
  const Registry& registry = Registry::instance();
  const auto* constructor = registry.constructor(start.constructor);
  if (constructor == nullptr) constructor = registry.constructor(start.constructor ^ kArgumentsInObject);
  std::string class_name = constructor == nullptr ? "an unknown class" : constructor->name;
  const auto constructed = [this, id, on_ready = std::move(on_ready)](Result<void> result) {
    {
      const std::lock_guard lock(mutex_);
      constructing_.erase(id);
    }
    on_ready(std::move(result));
  };
  const auto handle =
      host_actor(system_, home_, std::move(start), threads_, constructed,
                 [this, on_end = std::move(on_end)](const ActorAddress& actor, const std::string& reason) {
                   ended(actor, reason);
                   if (on_end) on_end(actor, reason);
                 });
  bool first = false;
  std::optional<std::string> closed;
  {
    const std::lock_guard lock(mutex_);
    closed = closed_;
    if (!closed) {
      living_.emplace(id, handle);
      constructing_[id].class_name = std::move(class_name);
      first = !std::exchange(looks_, true);
    }
  }
  if (closed) {
    enqueue(handle, caf::make_message(StopMessage{*closed, true}), nullptr);
    return constructed(
        ErrorInfo{ErrorCode::kUnavailable, "cannot construct an actor", *std::move(closed), ""});
  }
  if (first) look_again();
  enqueue(handle, caf::make_message(StartMessage{}), unit);
}

void ActorTable::look_again() {
  home_.gate().later(kLook, [this] { look(); });
}

/// Says which constructors do not come to their end.
void ActorTable::look() {
  std::vector<std::string> slow;
  bool again = false;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, one] : constructing_) {
      if (++one.looks == kLooks)
        slow.push_back("the constructor of " + one.class_name + " (actor " + to_string(id) + ") runs for " +
                       std::to_string((kLooks - 1) * kLook / std::chrono::seconds(1)) +
                       " s or more, and whoever spawned it waits: look at process " +
                       std::to_string(::getpid()));
    }
    again = looks_ = !constructing_.empty();
  }
  for (const std::string& line : slow) log(LogLevel::kWarning, line);
  if (again) look_again();
}

void ActorTable::deliver(ActorId id, std::shared_ptr<IncomingCall> call, caf::execution_unit* unit) {
  caf::strong_actor_ptr actor;
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = living_.find(id); at != living_.end()) actor = at->second;
    if (actor == nullptr) why = why_not_here(id);
  }
  if (actor == nullptr) {
    return call->responder.fail({ErrorCode::kActorDied, "the actor is gone", std::move(why),
                                 "spawn it again, or monitor it to be told"});
  }
  enqueue(actor, caf::make_message(CallMessage{std::move(call)}), unit);
}

bool ActorTable::stop(ActorId id, std::string reason, bool at_once) {
  caf::strong_actor_ptr actor;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = living_.find(id); at != living_.end()) actor = at->second;
  }
  if (actor == nullptr) return false;
  enqueue(actor, caf::make_message(StopMessage{std::move(reason), at_once}), nullptr);
  return true;
}

void ActorTable::monitor(ActorId id, Responder responder) {
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    if (living_.contains(id) || id == ActorId{}) {
      monitors_[id].push_back(std::move(responder));
      return;
    }
    why = why_not_here(id);
  }
  responder.answer(wire::encode(why));
}

std::optional<std::string> ActorTable::why_ended(ActorId id) const {
  const std::lock_guard lock(mutex_);
  return living_.contains(id) ? std::nullopt : std::optional(why_not_here(id));
}

void ActorTable::ended(const ActorAddress& actor, const std::string& reason) {
  std::vector<Responder> told;
  caf::strong_actor_ptr last;  // released after the lock
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = living_.find(actor.actor); at != living_.end()) {
      last = std::move(at->second);
      living_.erase(at);
    }
    constructing_.erase(actor.actor);  // one that is stopped before does not tell that it is ready
    ended_.remember(actor.actor, reason);
    if (auto monitors = monitors_.extract(actor.actor)) told = std::move(monitors.mapped());
  }
  for (auto& one : told) one.answer(wire::encode(reason));
}

std::string ActorTable::why_not_here(ActorId actor) const {
  const auto* why = ended_.find(actor);
  return why != nullptr ? *why : "no such actor is in its process (any more)";
}

void ActorTable::stop_all(const std::string& reason, bool at_once) {
  std::vector<ActorId> all;
  std::vector<Responder> told;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_ = reason;
    for (const auto& [id, actor] : living_) all.push_back(id);
    if (auto monitors = monitors_.extract(ActorId{})) told = std::move(monitors.mapped());
  }
  for (auto& one : told) one.answer(wire::encode(reason));
  for (const ActorId id : all) stop(id, reason, at_once);
}

void ActorTable::wait_until_empty(Duration timeout) const {
  const MonotonicClock clock;
  for (const Instant deadline = clock.now() + timeout; size() != 0 && clock.now() < deadline;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::size_t ActorTable::size() const {
  const std::lock_guard lock(mutex_);
  return living_.size();
}

}  // namespace troupe
