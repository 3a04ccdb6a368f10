// Objects that tasks compute. What such an object is called stays; the object that has its value may change:
// when that is lost, the task runs again (runtime/tasks/lineage.hpp).
#include <algorithm>
#include <map>

#include "runtime/host/may_wait.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"

namespace troupe::objects {
namespace {

/// Places that are remembered.
constexpr std::size_t kMostPlaces = 4096;

void resolve(Fetch& fetch, Outcome outcome) {
  const NoWaitScope no_wait;  // it may be the disk's thread, for which others wait
  fetch.done.resolve(std::move(outcome));
}

}  // namespace

HandlePtr Objects::reserve() {
  return hold_computed(next_number() | kComputedNumber);
}

HandlePtr Objects::hold_computed(std::uint64_t number) {
  Computed before;  // of its last life, whose end another thread still carries out; goes without the lock
  {
    const std::lock_guard lock(mutex_);
    if (owned_.contains(number)) {
      owned_.hold(number);
    } else {
      owned_.add(number, 0, false);
      Computed fresh;
      fresh.known = std::make_shared<Fetch>(waiter_);
      before = std::exchange(computed_[number], std::move(fresh));
    }
  }
  if (before.known != nullptr) resolve(*before.known, freed(own_name(number)));
  return std::make_shared<Handle>(weak_from_this(), own_name(number));
}

NodeId Objects::mostly_on(const wire::Kept& handles) const {
  constexpr std::uint64_t kUnknown = std::uint64_t{1} << 20;  // of those that others have, or have on disk
  std::map<NodeId, std::uint64_t> bytes;
  const std::lock_guard lock(mutex_);
  for (const auto& kept : handles) {
    const ObjectName& name = std::static_pointer_cast<const Handle>(kept)->name();
    if (name.owner != gate_.address()) {
      const auto place = places_.find(name);
      bytes[place == places_.end() ? name.owner.node : place->second.owner.node] += kUnknown;
    } else if (const auto value = values_.find(name.number); value != values_.end()) {
      if (value->second.bytes > kInlineBytes) bytes[name.owner.node] += value->second.bytes;
    } else if (const auto found = computed_.find(name.number); found != computed_.end() && found->second.at) {
      const ObjectName& at = found->second.at->name();
      const auto own = at.owner == gate_.address() ? values_.find(at.number) : values_.end();
      if (own == values_.end() || own->second.bytes > kInlineBytes) bytes[at.owner.node] += kUnknown;
    }
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? NodeId() : most->first;
}

void Objects::set_hooks(Hooks hooks) {
  const std::lock_guard lock(mutex_);
  hooks_ = std::make_shared<const Hooks>(std::move(hooks));
}

std::shared_ptr<const Objects::Hooks> Objects::hooks() const {
  const std::lock_guard lock(mutex_);
  return closed_ ? nullptr : hooks_;
}

std::string Objects::why_waits(const ObjectName& name) const {
  const auto asked = name.is_computed() && name.owner == gate_.address() ? hooks() : nullptr;
  return asked == nullptr ? "" : asked->why_waits(name.number);
}

void Objects::computed(std::uint64_t number, Result<HandlePtr> at) {
  FetchPtr known;
  HandlePtr before;  // goes without the lock
  {
    const std::lock_guard lock(mutex_);
    const auto found = computed_.find(number);
    if (found == computed_.end()) return;  // nobody refers to it any more
    known = found->second.known;
    if (at) before = std::exchange(found->second.at, *at);
  }
  if (at) return resolve(*known, wire::Bytes{});
  ErrorInfo why = at.error();
  if (why.origin.empty() && why.code != ErrorCode::kObjectLost) why.origin = kComputes;
  resolve(*known, std::move(why));
}

void Objects::lose(std::uint64_t number, const ObjectName& place, const std::string& why) {
  HandlePtr gone;  // goes without the lock
  {
    const std::lock_guard lock(mutex_);
    const auto found = computed_.find(number);
    if (found == computed_.end() || found->second.at == nullptr || found->second.at->name() != place) return;
    gone = std::move(found->second.at);
    found->second.known = std::make_shared<Fetch>(waiter_);
    found->second.is_wanted = false;
  }
  const auto told = hooks();
  if (told == nullptr) return;
  told->lost(number, "it was on node " + to_string(place.owner.node) + ": " + why);
  bool is_wanted = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = computed_.find(number);
    is_wanted = found != computed_.end() && found->second.is_wanted;
  }
  if (is_wanted) told->wanted(number);  // who wanted it before it was said to be lost was not heard
}

void Objects::lose_those_at(const OwnerTable::IsDown& is_down, const std::string& why) {
  std::vector<std::pair<std::uint64_t, ObjectName>> there;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, one] : computed_) {
      if (one.at != nullptr && is_down(one.at->name().owner)) there.emplace_back(number, one.at->name());
    }
  }
  for (const auto& [number, place] : there) lose(number, place, why);
}

/// Which object has the value, once that is known. Who does not wait hears that it is not.
void Objects::place_of(std::uint64_t number, bool waits, OnPlace then) {
  FetchPtr known;
  HandlePtr at;
  std::optional<ErrorInfo> at_end;
  {
    const std::lock_guard lock(mutex_);
    if (const auto end = at_end_.find(number); end != at_end_.end()) at_end = end->second;
    const auto found = computed_.find(number);
    if (found != computed_.end()) {
      known = found->second.known;
      at = found->second.at;
      if (!known->done.ready()) found->second.is_wanted = true;
    }
  }
  if (known == nullptr) return then(at_end ? *std::move(at_end) : freed(own_name(number)));
  if (!known->done.ready()) {
    if (const auto told = hooks()) told->wanted(number);
    if (!waits) return then(not_computed_yet(own_name(number)));
    Fetch& fetch = *known;
    return fetch.done.on_ready(
        [weak = weak_from_this(), known = std::move(known), number, then = std::move(then)] {
          if (const auto self = weak.lock()) self->place_of(number, true, then);
        });
  }
  if (!known->done.outcome().ok()) return then(known->done.outcome().error());
  then(at);
}

void Objects::locate_computed(const LocateAsk& ask, Responder responder) {
  if (ask.unread) lose(ask.number, ask.unread, ask.why);
  place_of(ask.number, ask.waits,
           [later = std::make_shared<Responder>(std::move(responder))](Result<HandlePtr> at) {
             if (!at) return later->fail(at.error());
             Location location;
             location.where = Where::kElsewhere;
             location.place = (*at)->name();
             later->answer(wire::encode(location));
           });
}

/// Of what ended otherwise: not again.
LookAgain Objects::after_broken(const Outcome& outcome, int times) const {
  if (!link_broke(outcome) || is_closed()) return {};
  return after_broken_link(times, limits_);
}

void Objects::when_computed(const ObjectName& name, std::function<void(Result<void>)> then, int broken) {
  const auto said = ask(name.owner, kLocate, wire::encode(LocateAsk{name.number}));
  said->on_ready([weak = weak_from_this(), said, name, then = std::move(then), broken] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    if (said->outcome().ok()) return then({});
    ErrorInfo why = said->outcome().error();
    const LookAgain next = self->after_broken(said->outcome(), broken);
    if (next.again) {
      return self->gate_.later(next.after, [weak, name, then, broken] {
        if (const auto again = weak.lock()) again->when_computed(name, then, broken + 1);
      });
    }
    if (why.code == ErrorCode::kActorDied && why.origin.empty()) why = self->lost_by_death(name, why.why);
    then(std::move(why));
  });
}

/// Reads the object that has the value, and calls `again` when it is lost (which needs no bound: to compute
/// it again has one) or when the link broke.
void Objects::read_at(const ObjectName& name, const ObjectName& place, const FetchPtr& fetch, int broken,
                      Again again) {
  auto there = this->fetch(place, true, call_of(*fetch));
  Fetch& inner = *there;
  inner.done.on_ready([weak = weak_from_this(), name, place, fetch, broken, again = std::move(again),
                       there = std::move(there)] {
    const auto self = weak.lock();
    const Outcome& outcome = there->done.outcome();
    const bool goes_on = self != nullptr && !self->is_closed();
    if (goes_on && !outcome.ok() && outcome.error().code == ErrorCode::kObjectLost)
      return again(*self, outcome.error().why, 0);
    const bool may_again = goes_on && !there->is_argument;  // that has been asked for again already
    if (const LookAgain next = may_again ? self->after_broken(outcome, broken) : LookAgain{}; next.again) {
      return self->gate_.later(next.after, [weak, again, broken] {
        if (const auto later = weak.lock()) again(*later, "", broken + 1);
      });
    }
    FetchPtr known;  // who asks next is told anew where it is
    if (self != nullptr) {
      const std::lock_guard lock(self->mutex_);
      if (const auto at = self->here_.find(name); at != self->here_.end() && at->second == fetch) {
        known = std::move(at->second);
        self->here_.erase(at);
      }
      if (self->places_.size() >= kMostPlaces) self->places_.clear();
      if (outcome.ok()) self->places_.insert_or_assign(name, place);
    }
    fetch->bytes = there->bytes;
    resolve(*fetch, outcome);
  });
}

/// Of another process's object, where that has come to this process already.
std::shared_ptr<Fetch> Objects::value_here(const ObjectName& name) const {
  const std::lock_guard lock(mutex_);
  const auto at = places_.find(name);
  if (at == places_.end() || dead_.find(name.owner) != nullptr) return nullptr;
  FetchPtr value;
  if (const auto here = here_.find(at->second); here != here_.end()) value = here->second;
  if (at->second.owner == gate_.address()) {
    if (const auto own = values_.find(at->second.number); own != values_.end()) value = own->second.value;
  }
  return value != nullptr && value->done.ready() && value->done.outcome().ok() ? value : nullptr;
}

void Objects::follow_own(std::uint64_t number, const FetchPtr& fetch, int broken) {
  place_of(number, fetch->waits, [weak = weak_from_this(), number, fetch, broken](Result<HandlePtr> at) {
    const auto self = weak.lock();
    if (self == nullptr || !at) return resolve(*fetch, at ? process_ends() : at.error());
    self->read_at(self->own_name(number), (*at)->name(), fetch, broken,
                  [number, fetch, at = *at](Objects& objects, const std::string& why, int tries) {
                    if (!why.empty()) objects.lose(number, at->name(), why);
                    objects.follow_own(number, fetch, tries);
                  });
  });
}

void Objects::follow(const ObjectName& name, const FetchPtr& fetch, const ObjectName& place, int broken) {
  read_at(name, place, fetch, broken,
          [name, fetch, place](Objects& objects, const std::string& why, int tries) {
            objects.locate(name, fetch, tries, why.empty() ? ObjectName{} : place, why);
          });
}

/// True: its owner could not be reached, and is asked again.
bool Objects::locates_again(const ObjectName& name, const FetchPtr& fetch, int broken,
                            const Outcome& outcome) {
  const LookAgain next = name.is_computed() ? after_broken(outcome, broken) : LookAgain{};
  if (!next.again) return false;
  locate_after(next.after, name, fetch, broken + 1);
  return true;
}

// Keeping what a worker has computed, which ends before long.

void Objects::keep_copy(const ObjectName& of, OnPlace then) {
  auto held = hold(of);
  auto there = fetch(of);
  Fetch& inner = *there;
  inner.done.on_ready(
      [weak = weak_from_this(), held = std::move(held), there = std::move(there), then = std::move(then)] {
        const auto self = weak.lock();
        if (self == nullptr) return;
        if (!there->done.outcome().ok()) return then(there->done.outcome().error());
        if (there->bytes->view().size() <= kInlineBytes) return then(self->copy_small(*there));
        self->own_copy(there, held, then);
      });
}

/// A new object of this process with the bytes of `there`, for which `held` lives until then.
void Objects::own_copy(FetchPtr there, std::shared_ptr<const void> held, OnPlace then) {
  const std::uint64_t number = next_number();
  const std::uint64_t bytes = there->bytes->view().size() + kTagBytes;
  const auto ask = ask_for(own_region(gate_.address(), number), bytes);
  obtain(ask, bytes, [weak = weak_from_this(), number, held, there, then](Result<Lent> lent) {
    const auto here = weak.lock();
    if (here == nullptr) return;
    const auto got = std::make_shared<Result<Lent>>(std::move(lent));
    here->on_disk([number, held, there, then, got](Objects& us, const ErrorInfo* why_not) {
      const NoWaitScope no_wait;  // others wait for this thread
      if (why_not == nullptr) return then(us.write_copy(number, *there, std::move(*got)));
      if (*got) us.gate_.drop_region(own_region(us.gate_.address(), number));
      then(*why_not);
    });
  });
}

Result<HandlePtr> Objects::copy_small(const Fetch& from) {
  const wire::ByteView bytes = from.bytes->view();
  try {
    return put(wire::Bytes(bytes.begin(), bytes.end()));
  } catch (const LimitExceeded& error) {
    return error.info();
  }
}

Result<HandlePtr> Objects::write_copy(std::uint64_t number, const Fetch& from, Result<Lent> lent) {
  if (lent && lent->answer.full) {
    lent->answer.why.why +=
        "; a computed value takes its room twice while it is copied to a process that stays";
    lent = lent->answer.why;
  }
  if (!lent) return lent.error();
  const wire::ByteView bytes = from.bytes->view();
  auto segment = Segment::write(number, lent->fd, number, bytes.size(), source_of(bytes));
  auto mapped = segment ? read_segment(lent->fd, number, bytes.size()) : Result<BytesPtr>(segment.error());
  if (!mapped) {
    gate_.drop_region(own_region(gate_.address(), number));
    return mapped.error();
  }
  return own(number, *std::move(mapped), *std::move(segment));
}

HandlePtr Objects::offered_copy(const ObjectName& of, ProcessAddress to) const {
  const std::lock_guard lock(mutex_);
  return offers_.copy_for(to, of);
}

/// Who asks may ask again after its link broke: there is one copy.
void Objects::keep_for(const ObjectName& of, ProcessAddress from, Responder responder) {
  if (const auto offered = offered_copy(of, from)) return responder.answer(wire::encode(offered->name()));
  keep_copy(of, [weak = weak_from_this(), of, from,
                 later = std::make_shared<Responder>(std::move(responder))](Result<HandlePtr> kept) {
    const auto self = weak.lock();
    if (!kept || self == nullptr) return later->fail(kept ? process_ends() : kept.error());
    auto object = self->offered_copy(of, from);
    if (object == nullptr) self->offer(object = *kept, from, of);
    later->answer(wire::encode(object->name()));
  });
}

void Objects::keep_at(ProcessAddress keeper, const ObjectName& of, OnPlace then) {
  if (keeper == gate_.address()) return keep_copy(of, std::move(then));
  auto held = hold(of);
  const auto said = ask(keeper, kKeep, wire::encode(of));
  said->on_ready([weak = weak_from_this(), said, held = std::move(held), then = std::move(then)] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    if (!said->outcome().ok()) return then(said->outcome().error());
    const auto name = wire::decode<ObjectName>(*said->outcome());
    name ? then(self->hold(*name)) : then(name.error());
  });
}

HandlePtr Objects::accept(const ObjectName& name) {
  auto handle = hold(name);
  HandlePtr offered;  // goes without the lock
  const std::lock_guard lock(mutex_);
  if (name.owner == gate_.address()) offered = offers_.take(name.number, gate_.address());
  return handle;
}

}  // namespace troupe::objects
