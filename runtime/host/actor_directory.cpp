#include "runtime/host/actor_directory.hpp"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

using cluster::ActorLife;

ErrorInfo died(const std::string& why) {
  return {ErrorCode::kActorDied, "the actor is gone", why, "spawn it again, or monitor it to be told"};
}

ErrorInfo between_lives(const std::string& why) {
  return {ErrorCode::kUnavailable, "a call has no answer",
          "its actor died (" + why + ") and is started again: the call may or may not have run",
          "call again if that does no harm, or spawn the actor with max_task_retries"};
}

ErrorInfo too_many() {
  return {ErrorCode::kUnavailable, "a call was not sent",
          "64 MiB of calls to its actor wait: for its next life, or for the link to its node",
          "call again in a while"};
}

/// What the runtime says for an actor that is gone. What a method threw has an origin.
bool is_death(const ErrorInfo& error) {
  return error.code == ErrorCode::kActorDied && error.origin.empty();
}

bool is_unavailable(const ErrorInfo& error) {
  return error.code == ErrorCode::kUnavailable && error.origin.empty();
}

}  // namespace

void ActorDirectory::run(After& after) {
  for (auto& one : std::exchange(after, {})) one();
}

ActorDirectory::Entry& ActorDirectory::entry_of(ActorId actor, After& after) {
  const auto [at, is_new] = entries_.try_emplace(actor);
  if (is_new) after.push_back([this, actor] { floor_.ask(actor); });
  return at->second;
}

/// What a call waits for that is not sent: told by a Timeout.
void ActorDirectory::say_why(const Entry& entry, const Call& call) {
  if (call->state == nullptr || !entry.known) return;
  std::string why;
  if (entry.at.life == ActorLife::kRestarts) {
    why = "its actor is started again: " + entry.at.reason;
  } else if (entry.gone) {
    why = "its actor's process is gone, and the head has not said what follows";
  } else if (entry.paused) {
    why = "the link to its actor's node is full or broke";
  }
  call->state->set_waits_for(std::move(why));
}

void ActorDirectory::wait(Entry& entry, Call call) {
  say_why(entry, call);
  entry.waiting_bytes += call->args.bytes.size();
  const auto behind = std::upper_bound(entry.waiting.begin(), entry.waiting.end(), call,
                                       [](const Call& a, const Call& b) { return a->order < b->order; });
  entry.waiting.insert(behind, std::move(call));
}

void ActorDirectory::resolve(const Call& call, ErrorInfo error, After& after) {
  if (call->state == nullptr) return;
  after.push_back([this, state = call->state, error = std::move(error)] { floor_.resolve(state, error); });
}

void ActorDirectory::notify(const OnDeath& callback, Death death, After& after) {
  after.push_back([this, callback, death = std::move(death)] { floor_.notify(callback, death); });
}

void ActorDirectory::call(Call call) {
  After after;
  std::optional<ProcessAddress> to;
  const ActorId actor = call->actor;
  {
    const std::lock_guard lock(mutex_);
    const std::string* why = ended_.find(actor);
    if (closed_ || why != nullptr) {
      resolve(call, closed_ ? *closed_ : died(*why), after);
    } else if (Entry& entry = entry_of(actor, after);
               entry.waiting_bytes + call->args.bytes.size() > kMostWaiting) {
      resolve(call, too_many(), after);
    } else if (call->order = ++entry.calls;
               entry.is_reachable() && entry.waiting.empty() && !entry.flushing) {
      to = entry.at.process;
      ++call->sent;
    } else {
      wait(entry, call);
    }
  }
  run(after);
  if (!to) return flush(actor);
  if (const auto sent = floor_.send(call, *to); !sent) answered(call, *to, sent.error(), true);
}

void ActorDirectory::flush(ActorId actor) {
  std::unique_lock lock(mutex_);
  auto at = entries_.find(actor);
  if (at == entries_.end() || at->second.flushing) return;
  while (at != entries_.end() && at->second.is_reachable() && !at->second.waiting.empty()) {
    Entry& entry = at->second;
    const Call call = std::move(entry.waiting.front());
    entry.waiting.pop_front();
    entry.waiting_bytes -= call->args.bytes.size();
    entry.flushing = true;
    ++call->sent;
    const ProcessAddress to = entry.at.process;
    lock.unlock();
    if (const auto sent = floor_.send(call, to); !sent) answered(call, to, sent.error(), true);
    lock.lock();
    at = entries_.find(actor);
    if (at != entries_.end()) at->second.flushing = false;
  }
}

void ActorDirectory::monitor(ActorId actor, OnDeath callback) {
  After after;
  {
    const std::lock_guard lock(mutex_);
    const std::string* why = ended_.find(actor);
    if (closed_ || why != nullptr) {
      notify(callback, {why == nullptr ? closed_->why : *why, false}, after);
    } else {
      entry_of(actor, after).monitors.push_back(std::move(callback));
    }
  }
  run(after);
}

void ActorDirectory::decide(Entry& entry, const std::vector<Call>& calls, const ErrorInfo& why,
                            After& after) {
  const int most = entry.at.max_task_retries;
  for (const Call& call : calls) {
    if (call->sent == 0 || most < 0 || call->sent <= most) {
      wait(entry, call);
    } else {
      resolve(call, why, after);
    }
  }
}

void ActorDirectory::told(const cluster::ActorPlace& place) {
  After after;
  const bool lives = place.life == ActorLife::kLives;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(place.actor);
    if (found == entries_.end()) return;
    Entry& entry = found->second;
    if (place.life == ActorLife::kEnded) {
      end(place.actor, entry, place.reason, after);
    } else {
      const bool died_since = entry.known && place.incarnation > entry.at.incarnation;
      const bool stays = entry.known && lives && entry.at.life == ActorLife::kLives && !died_since;
      entry.at = place;
      entry.known = true;
      if (!stays) {
        entry.gone = false;
        entry.paused = false;
        const std::string why = lives ? "what it died of was not heard" : place.reason;
        auto lost = std::exchange(entry.lost, {});
        const auto sent = floor_.take_sent(place.actor, lives ? place.process : ProcessAddress{});
        lost.insert(lost.end(), sent.begin(), sent.end());
        decide(entry, lost, between_lives(why), after);
        for (const Call& call : entry.waiting) say_why(entry, call);
        if (died_since) {
          for (const auto& callback : entry.monitors) notify(callback, {why, true}, after);
        }
      }
    }
  }
  run(after);
  flush(place.actor);
}

void ActorDirectory::end(ActorId actor, Entry& entry, const std::string& reason, After& after) {
  for (const Call& call : entry.lost) resolve(call, died(reason), after);
  for (const Call& call : floor_.take_sent(actor, {})) resolve(call, died(reason), after);
  for (const Call& call : entry.waiting) resolve(call, died(reason), after);
  for (const auto& callback : entry.monitors) notify(callback, {reason, false}, after);
  ended_.remember(actor, reason);
  entries_.erase(actor);
}

void ActorDirectory::failed(const Call& call, ProcessAddress at, const ErrorInfo& why) {
  After after;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(call->actor);
    if (found == entries_.end()) {
      const std::string* ended = ended_.find(call->actor);
      resolve(call, closed_ ? *closed_ : died(ended == nullptr ? why.why : *ended), after);
    } else if (Entry& entry = found->second; why.code != ErrorCode::kActorDied) {
      // That a link broke is no death, but often the first that is heard of one: it uses up no retry.
      if (entry.at.max_task_retries != 0) --call->sent;
      decide(entry, {call}, why, after);
    } else if (entry.at.life == ActorLife::kLives && entry.at.process == at) {
      entry.gone = true;
      entry.lost.push_back(call);
    } else {
      decide(entry, {call}, between_lives(why.why), after);  // what follows was told before
    }
  }
  run(after);
  flush(call->actor);
}

void ActorDirectory::answered(const Call& call, ProcessAddress at, const ErrorInfo& error, bool never_sent) {
  if (is_death(error)) {
    if (never_sent) call->sent = 0;  // sent to the next life in any case
    return failed(call, at, error);
  }
  After after;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(call->actor);
    if (never_sent && is_unavailable(error) && found != entries_.end() &&
        found->second.at.max_task_retries != 0) {
      Entry& entry = found->second;
      --call->sent;
      const bool first = !std::exchange(entry.paused, true);
      wait(entry, call);
      if (first) after.push_back([this, actor = call->actor] { floor_.resume_later(actor); });
    } else {
      resolve(call, error, after);
    }
  }
  run(after);
}

void ActorDirectory::resume(ActorId actor) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(actor);
    if (found == entries_.end()) return;
    found->second.paused = false;
    for (const Call& call : found->second.waiting) say_why(found->second, call);
  }
  flush(actor);
}

void ActorDirectory::close(const ErrorInfo& why) {
  After after;
  {
    const std::lock_guard lock(mutex_);
    closed_ = why;
    for (const auto& [actor, entry] : entries_) {
      for (const Call& call : entry.lost) resolve(call, why, after);
      for (const Call& call : entry.waiting) resolve(call, why, after);
      for (const auto& callback : entry.monitors) notify(callback, {why.why, false}, after);
    }
    entries_.clear();
  }
  run(after);
}

}  // namespace troupe
