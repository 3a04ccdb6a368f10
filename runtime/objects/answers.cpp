// Large answers: the process that made one owns it as an object, until whoever called has copied it. And
// references in answers: who answered holds what they name until whoever called does.
#include <set>

#include "runtime/host/may_wait.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"

namespace troupe::objects {
namespace {

/// A larger answer is not copied in a thread that receives.
constexpr std::size_t kQuickBytes = std::size_t{16} << 20;

Outcome copy_of(const Fetch& fetch, const ObjectName& name) {
  if (!fetch.done.outcome().ok()) return answer_lost(name, fetch.done.outcome().error());
  const wire::ByteView bytes = fetch.bytes->view();
  return wire::Bytes(bytes.begin(), bytes.end());
}

ErrorInfo session_over() {
  return {ErrorCode::kUnavailable, "an answer cannot be read",
          "its session has ended, and it had not been read before", "get() it while the session lives"};
}

}  // namespace

/// The death of who made it is the death of the actor that was called.
ErrorInfo answer_lost(const ObjectName& name, const ErrorInfo& why) {
  if (why.code == ErrorCode::kObjectLost && why.why == freed(name).why)
    return {ErrorCode::kUnavailable, "a call has no answer",
            "the link broke before its answer was fetched: it has run", "call again if that does no harm"};
  if (!is_lost_with_owner(why)) return why;
  return {ErrorCode::kActorDied, "the actor is gone", why.why + "; its answer was not fetched yet",
          "spawn it again, or monitor it to be told"};
}

bool Objects::may_offer(ProcessAddress to) const {
  return !closed_ && dead_.find(to) == nullptr && dead_nodes_.find(to.node) == nullptr;
}

void Objects::offer(HandlePtr object, ProcessAddress to, const ObjectName& copy_of) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = object->name().number;
  if (may_offer(to)) offers_.add(number, {to, std::move(object), copy_of});
}

void Objects::offer_answer(HandlePtr object, ProcessAddress to) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = object->name().number;
  if (const auto own = values_.find(number); own != values_.end()) own->second.is_answer = true;
  if (may_offer(to)) offers_.add_answer(number, {to, std::move(object)});
}

void Objects::wait_until_taken(Duration most) {
  const MonotonicClock clock;
  const Instant until = clock.now() + most;
  std::unique_lock lock(mutex_);
  for (Instant now = clock.now(); !closed_ && offers_.has_answers() && now < until; now = clock.now())
    taken_.wait_for(lock, until - now);
}

void Objects::take(const ObjectName& name, std::function<void(Outcome)> then) {
  auto handle = hold(name);
  auto fetched = fetch_shared(name, true, nullptr, true);
  Fetch& fetch = *fetched;
  fetch.done.on_ready([weak = weak_from_this(), name, fetched = std::move(fetched),
                       handle = std::move(handle), then = std::move(then)]() mutable {
    const auto self = weak.lock();
    const bool is_quick = fetched->bytes == nullptr || fetched->bytes->view().size() <= kQuickBytes;
    if (is_quick || self == nullptr) return then(copy_of(*fetched, name));
    self->on_disk([name, fetched = std::move(fetched), handle = std::move(handle), then = std::move(then)](
                      Objects&, const ErrorInfo* why_not) {
      const NoWaitScope no_wait;  // who sends the answer on would wait for room, which this thread makes
      then(why_not != nullptr ? Outcome(*why_not) : copy_of(*fetched, name));
    });
  });
}

// Answers that nobody waits for.

CallState::Load Objects::load_of(HandlePtr answer) {
  return [weak = weak_from_this(), answer = std::move(answer)](std::function<void(Outcome)> then) {
    const auto self = weak.lock();
    if (self == nullptr) return then(session_over());
    auto fetched = self->fetch(answer->name());
    Fetch& fetch = *fetched;
    fetch.done.on_ready([answer, fetched = std::move(fetched), then = std::move(then)] {
      const NoWaitScope no_wait;  // it may be the disk's thread, for which others wait
      then(copy_of(*fetched, answer->name()));
    });
  };
}

void Objects::store(const ObjectName& name, OnStored then) {
  auto held = hold(name);  // also for take()
  keep_copy(name, [weak = weak_from_this(), name, held = std::move(held),
                   then = std::move(then)](Result<HandlePtr> kept) {
    const auto self = weak.lock();
    if (self == nullptr) return then(process_ends(), nullptr);
    if (kept) return then(wire::Bytes{}, self->load_of(*kept));
    self->take(name, [held, then](Outcome outcome) { then(std::move(outcome), nullptr); });
  });
}

void Objects::store(wire::Bytes answer, OnStored then) {
  const auto there = std::make_shared<Fetch>(nullptr);
  there->bytes = std::make_shared<ObjectBytes>(std::move(answer));
  own_copy(there, nullptr, [weak = weak_from_this(), there, then = std::move(then)](Result<HandlePtr> kept) {
    const auto self = weak.lock();
    if (kept && self != nullptr) return then(wire::Bytes{}, self->load_of(*kept));
    const wire::ByteView bytes = there->bytes->view();
    then(wire::Bytes(bytes.begin(), bytes.end()), nullptr);
  });
}

void Objects::withdraw(const OwnerTable::IsDown& is_down) {
  std::vector<HandlePtr> gone;  // without the lock
  const std::lock_guard lock(mutex_);
  gone = offers_.withdraw(is_down);
}

/// The answer may have been lost with its link: who called says then that it holds nothing.
void Objects::hand_over(wire::Kept references, ProcessAddress to, std::uint64_t call) {
  if (is_closed()) return;
  const auto said = ask(to, kAnswerHeld, wire::encode(NumberTell{call}));
  said->on_ready([weak = weak_from_this(), said, references = std::move(references), to, call] {
    const auto self = weak.lock();
    if (self == nullptr || said->outcome().ok()) return;  // and lets go of them
    const bool broke = link_broke(said->outcome());       // else it died, maybe before the owners knew of it
    self->gate_.later(broke ? kSaysAgain : kDeadBorrowerGrace, [weak, references, to, call, broke] {
      const auto here = weak.lock();
      if (here != nullptr && broke) here->hand_over(references, to, call);
    });
  });
}

wire::Kept Objects::received(const std::vector<ObjectName>& names, ProcessAddress from, std::uint64_t call) {
  const auto known = std::make_shared<CallState>(nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) received_[{from, call}] = known;
  }
  BorrowScope borrows;
  wire::Kept held;
  for (const ObjectName& name : names) held.push_back(hold(name));
  borrows.when_known([weak = weak_from_this(), known, from, call] {
    if (const auto self = weak.lock()) {
      const std::lock_guard lock(self->mutex_);
      self->received_.erase({from, call});
    }
    known->resolve(wire::Bytes{});
  });
  return held;
}

/// It comes on the link on which the answer came before.
void Objects::when_held(ProcessAddress from, std::uint64_t call, Responder responder) {
  std::shared_ptr<CallState> known;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = received_.find({from, call}); at != received_.end()) known = at->second;
  }
  if (known == nullptr) return responder.answer({});
  known->on_ready([later = std::make_shared<Responder>(std::move(responder))] { later->answer({}); });
}

void Objects::node_lost(NodeId node) {
  withdraw([node](ProcessAddress p) { return p.node == node; });
  OwnerTable::Actions actions;
  {
    const std::lock_guard lock(mutex_);
    owned_.link_lost(node, actions);
    // Copies of theirs are forgotten when they die, which may not be heard either.
    std::set<ProcessAddress> owners;
    for (const ObjectName& name : copies_of([node](ProcessAddress p) { return p.node == node; }))
      owners.insert(name.owner);
    for (const ProcessAddress owner : owners) actions.emplace_back(OwnerTable::Check{owner, true});
  }
  carry_out(std::move(actions));
}

}  // namespace troupe::objects
