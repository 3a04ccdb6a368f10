// How a process comes by the bytes of an object.
#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "runtime/core/log.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"

namespace troupe::objects {
namespace {

/// What no host has. Sums of such lengths do not overflow.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 48;
/// An argument that waits for room looks so often.
constexpr Duration kLooksForRoom = std::chrono::milliseconds(20);

/// Of an argument of a call.
struct ArgumentFetch : Fetch {
  ArgumentFetch(Waiter* waiter, std::shared_ptr<CallBytes> of) : Fetch(waiter), of_call(std::move(of)) {
    is_argument = true;
  }
  const std::shared_ptr<CallBytes> of_call;
  std::uint64_t known_bytes = 0;  ///< that it is counted with in there; guarded as the queue of copies is
};

/// Beside the store.
Result<Objects::Lent> own_memory(std::uint64_t bytes) {
  const auto memory = SharedMemory::create("troupe:an answer", bytes, false);
  if (!memory) return memory.error();
  Objects::Lent own{UniqueFd(::fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0)), {}};
  if (!own.fd) return io_error("no memory for an answer", errno, "raise ulimit -n");
  return own;
}

ErrorInfo comes_and_goes(const ObjectName& name, std::string why) {
  return {ErrorCode::kLimit, "cannot read an object of process " + to_string(name.owner.process),
          std::move(why), "ask again when less is in use, or set TROUPE_REGIONS_BYTES"};
}

}  // namespace

/// An argument has a Fetch of its own, so that others who read the object hear at once of what it waits for.
std::shared_ptr<Fetch> Objects::fetch(const ObjectName& name, bool waits,
                                      const std::shared_ptr<CallBytes>& of_call) {
  auto shared = fetch_shared(name, waits, of_call);
  const bool is_here = shared->done.ready() && shared->done.outcome().ok();
  if (of_call == nullptr || is_here || name.is_computed() || name.owner == gate_.address()) return shared;
  auto argument = std::make_shared<ArgumentFetch>(waiter_, of_call);
  read_argument(name, argument, shared);
  return argument;
}

/// One try for all who read the object.
std::shared_ptr<Fetch> Objects::fetch_shared(const ObjectName& name, bool waits,
                                             const std::shared_ptr<CallBytes>& of_call, bool is_answer) {
  FetchPtr fresh = of_call == nullptr ? std::make_shared<Fetch>(waiter_)
                                      : std::make_shared<ArgumentFetch>(waiter_, of_call);
  fresh->waits = waits || !name.is_computed();
  fresh->is_answer = is_answer;
  if (name.is_computed()) {
    if (auto value = value_here(name)) return value;
    if (name.owner == gate_.address()) {
      follow_own(name.number, fresh, 0);
      return fresh;
    }
  }
  std::optional<ErrorInfo> why;
  FetchPtr own;
  bool over = false;
  auto want = SpillTable::Want::kHere;
  {
    const std::lock_guard lock(mutex_);
    if (name.owner == gate_.address()) {
      if (const auto at = values_.find(name.number); at != values_.end()) {
        own = at->second.value;
        want = spills_.want(name.number);
      } else {
        why = freed(name);
      }
    } else if (const std::string* node = dead_nodes_.find(name.owner.node)) {
      why = lost_with_owner(name, *node, OwnerDeath::kOfNode);
    } else if (const std::string* reason = dead_.find(name.owner)) {
      why = lost_with_owner(name, *reason, OwnerDeath::kOfProcess);
    } else if (closed_) {
      over = true;
    } else if (fresh->waits) {
      const auto [at, added] = here_.emplace(name, fresh);
      if (!added) return at->second;
    }
  }
  if (want == SpillTable::Want::kRead) restore(name.number);
  if (own != nullptr) return own;
  if (over) why = is_over();
  if (why) {
    fresh->done.resolve(*std::move(why));
  } else {
    locate(name, fresh, 0);
  }
  return fresh;
}

std::shared_ptr<CallBytes> Objects::call_of(const Fetch& fetch) {
  return fetch.is_argument ? static_cast<const ArgumentFetch&>(fetch).of_call : nullptr;
}

void Objects::locate(const ObjectName& name, FetchPtr fetch, int tries, const ObjectName& unread,
                     const std::string& why) {
  const LocateAsk question{name.number, tries > 0, fetch->waits, unread, why};
  const auto said = ask(name.owner, kLocate, wire::encode(question));
  said->on_ready([weak = weak_from_this(), said, name, fetch = std::move(fetch), tries] {
    if (const auto self = weak.lock()) self->located(name, fetch, tries, said->outcome());
  });
}

void Objects::locate_after(Duration pause, const ObjectName& name, const FetchPtr& fetch, int tries) {
  if (pause == Duration::zero()) return locate(name, fetch, tries);
  gate_.later(pause, [weak = weak_from_this(), name, fetch, tries] {
    if (const auto self = weak.lock()) self->locate(name, fetch, tries);
  });
}

/// It is a call's argument, and that has not come a minute ago.
bool Objects::waits_for_room(const Fetch& fetch) const {
  const auto call = call_of(fetch);
  const std::lock_guard lock(mutex_);
  return call != nullptr && !closed_ && MonotonicClock().now() < call->waits_until();
}

void Objects::located(const ObjectName& name, const FetchPtr& fetch, int tries, const Outcome& outcome) {
  if (!outcome.ok()) {
    if (locates_again(name, fetch, tries, outcome)) return;
    ErrorInfo why = outcome.error();
    // Its owner has it on disk. What computes one may have thrown that.
    const bool no_room = why.code == ErrorCode::kLimit && !name.is_computed();
    if (no_room && waits_for_room(*fetch)) return locate_after(kLooksForRoom, name, fetch, tries);
    if (why.code == ErrorCode::kActorDied && why.origin.empty()) why = lost_by_death(name, why.why);
    if (link_broke(outcome) && is_closed()) why = is_over();
    return done(name, fetch, std::move(why));
  }
  auto location = wire::decode<Location>(*outcome);
  if (!location) return done(name, fetch, location.error());
  if (location->bytes > kMostBytes) {
    return done(name, fetch,
                ErrorInfo{ErrorCode::kBadInput, "refused an object",
                          "its owner says that it has " + std::to_string(location->bytes) + " bytes",
                          "both processes must run the same build"});
  }
  switch (location->where) {
    case Where::kInline:
      return done(name, fetch, BytesPtr(std::make_shared<ObjectBytes>(std::move(location->value))));
    case Where::kHere:
      return open_copy(name, fetch, *location, tries);
    case Where::kFetch:
      return make_copy(name, fetch, *location);
    case Where::kGone:
      return done(name, fetch, freed(name));
    case Where::kElsewhere:
      return follow(name, fetch, location->place, tries);
  }
}

void Objects::open_copy(const ObjectName& name, const FetchPtr& fetch, const Location& at, int tries) {
  const bool near = name.owner.node == gate_.address().node && at.region != 0;
  const std::string key = near ? own_region(name.owner, at.region) : copy_region(name);
  const auto then = [weak = weak_from_this(), name, fetch, bytes = at.bytes, tries, near,
                     key](Result<Lent> lent) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    if (!lent) return self->done(name, fetch, lent.error());
    // Its owner has spilled the object meanwhile, or has freed it and put another one where it lay. Those
    // that held a copy ended or made room: then the node has made new memory for us, or is full.
    const bool is_there = !lent->answer.full;
    fetch->is_copy = !near && is_there;
    if (is_there) {
      auto read = near ? read_segment(lent->fd, name.number, bytes) : read_copy(lent->fd, name, bytes);
      if (read || read.error().code != ErrorCode::kUnavailable)
        return self->done(name, fetch, std::move(read));
      if (near && !is_sealed(lent->fd)) self->gate_.drop_region(key);
    }
    const LookAgain next = after_gone_memory(tries, self->limits_, self->waits_for_room(*fetch));
    if (next.again) return self->locate_after(next.after, name, fetch, tries + 1);
    if (fetch->is_answer) return self->copy_into(name, fetch, bytes, comes_and_goes(name, next.reason));
    self->done(name, fetch, comes_and_goes(name, next.reason));
  };
  ask_region_(key, at.bytes + kTagBytes, then);  // it should be there: no room is made for it
}

void Objects::make_copy(const ObjectName& name, const FetchPtr& fetch, const Location& at) {
  const std::uint64_t bytes = at.bytes;
  {
    const std::lock_guard lock(mutex_);
    making_[name] = at.ticket;
  }
  if (fetch->is_argument) {
    auto& argument = static_cast<ArgumentFetch&>(*fetch);
    bool is_first = false;
    {
      const std::lock_guard lock(mutex_);
      argument.known_bytes = bytes + kTagBytes;
      is_first = copies_.add({name, fetch, bytes + kTagBytes, argument.of_call});
    }
    if (is_first) next_copy();  // else whoever is goes on with it
    return;
  }
  const auto then = [weak = weak_from_this(), name, fetch, bytes](Result<Lent> lent) {
    if (const auto self = weak.lock()) self->copy_into(name, fetch, bytes, std::move(lent));
  };
  const int round = fetch->is_answer ? kMostRounds - 1 : 0;  // which waits for nobody who reads others
  obtain(ask_for(copy_region(name), bytes + kTagBytes), bytes + kTagBytes, then, round);
}

void Objects::next_copy() {
  std::optional<CopyQueue::Copy> first;
  {
    const std::lock_guard lock(mutex_);
    first = copies_.first();
  }
  if (!first) return;
  const auto then = [weak = weak_from_this(), copy = *first](Result<Lent> lent) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    bool goes_on = false;
    bool another = false;
    {
      const std::lock_guard lock(self->mutex_);
      if (lent && lent->answer.full && !self->closed_) {
        auto why = self->copies_.full(lent->answer.store_bytes, MonotonicClock().now());
        goes_on = !why;
        if (why) lent = *std::move(why);
      }
      if (!goes_on) another = self->copies_.end_first();
    }
    if (goes_on) {
      return self->gate_.later(kLooksForRoom, [weak] {
        if (const auto again = weak.lock()) again->next_copy();
      });
    }
    if (!lent) log(LogLevel::kWarning, "a call fails: " + lent.error().message());
    self->copy_into(copy.name, copy.fetch, copy.bytes - kTagBytes, std::move(lent));
    if (another) self->next_copy();  // else whoever adds one meanwhile asks for it
  };
  obtain(ask_for(copy_region(first->name), first->bytes), first->bytes, then);
}

void Objects::copy_into(const ObjectName& name, const FetchPtr& fetch, std::uint64_t bytes,
                        Result<Lent> lent) {
  if (lent && lent->answer.full) lent = lent->answer.why;
  const bool in_store = lent || !fetch->is_answer || lent.error().code != ErrorCode::kLimit;
  if (!in_store) lent = own_memory(bytes + kTagBytes);
  if (!lent) return end_copy(name, fetch, lent.error(), in_store);
  if (is_copy_of(lent->fd, name))  // it was made before
    return end_copy(name, fetch, read_copy(lent->fd, name, bytes), in_store);
  const PullPtr begun(new Pull{name, fetch, bytes, in_store, std::move(lent->fd), {}, {bytes, limits_}});
  auto choice = choose_way(name, bytes);
  pull(begun, [&choice](CopyPlan& plan, auto& out) { plan.begin(std::move(choice), out); });
}

void Objects::pull(const PullPtr& pull, const std::function<void(CopyPlan&, CopyPlan::Actions&)>& change) {
  CopyPlan::Actions actions;
  {
    const std::lock_guard lock(pull->mutex);
    change(pull->plan, actions);
  }
  for (const auto& action : actions) std::visit([&](const auto& what) { act(pull, what); }, action);
}

void Objects::act(const PullPtr& pull, const CopyPlan::AskPart& what) {
  const Part part = what.part;
  const auto said =
      ask(pull->name.owner, kPart, wire::encode(PartAsk{pull->name.number, part.offset, part.bytes}));
  said->on_ready([weak = weak_from_this(), said, pull, part] {
    if (const auto self = weak.lock()) self->pulled(pull, part, said->outcome());
  });
}

void Objects::pulled(const PullPtr& pull, const Part& part, const Outcome& outcome) {
  std::optional<ErrorInfo> failed;
  if (!outcome.ok()) {
    failed = outcome.error();
  } else if (outcome->size() != part.bytes) {
    failed = refused_question();
  } else if (auto wrote = write_at(pull->fd, part.offset, *outcome); !wrote) {
    failed = wrote.error();
  }
  this->pull(pull, [&](CopyPlan& plan, auto& out) { plan.part_ended(std::move(failed), out); });
}

void Objects::act(const PullPtr& pull, const CopyPlan::End& end) {
  auto mapped = end.failed ? Result<BytesPtr>(*end.failed) : finish_copy(pull->fd, pull->name, pull->bytes);
  end_copy(pull->name, pull->fetch, std::move(mapped), pull->in_store);
}

void Objects::end_copy(const ObjectName& name, const FetchPtr& fetch, Result<BytesPtr> mapped,
                       bool in_store) {
  fetch->is_copy = mapped.ok() && in_store;
  if (!fetch->is_copy) gate_.drop_region(copy_region(name));  // before another process makes the copy
  CopiedTell told{name.number, 0, fetch->is_copy};
  {
    const std::lock_guard lock(mutex_);
    if (const auto making = making_.extract(name)) told.ticket = making.mapped();
  }
  tell_surely(name.owner, kCopied, wire::encode(told));
  if (!mapped.ok() && mapped.error().code == ErrorCode::kActorDied)
    mapped = lost_by_death(name, mapped.error().why);
  done(name, fetch, std::move(mapped));
}

/// Where no link reached the owner, or the try was that of a reader, which waits for no room, or of another
/// call, whose minute is over before, there is another one: to its caller the call's failure would be that of
/// whoever was called.
void Objects::read_argument(const ObjectName& name, const FetchPtr& argument, const FetchPtr& shared) {
  shared->done.on_ready([weak = weak_from_this(), name, argument, shared] {
    const auto self = weak.lock();
    const Outcome& outcome = shared->done.outcome();
    const auto again = [weak, name, argument] {
      const auto objects = weak.lock();
      if (objects == nullptr || !objects->is_wanted_still(argument)) return;
      objects->read_argument(name, argument, objects->fetch_shared(name, true, call_of(*argument)));
    };
    if (self != nullptr && !outcome.ok()) {
      if (outcome.error().code == ErrorCode::kLimit && call_of(*shared) != call_of(*argument)) return again();
      if (const LookAgain next = self->after_broken(outcome, argument->broken_links++); next.again) {
        {
          const std::lock_guard lock(self->mutex_);
          call_of(*argument)->is_apart_until(MonotonicClock().now() + next.after);
          self->apart_.insert(argument);
        }
        return self->gate_.later(next.after, again);
      }
    }
    argument->bytes = shared->bytes;
    argument->done.resolve(outcome);
  });
}

/// Else it ended with this process.
bool Objects::is_wanted_still(const FetchPtr& argument) {
  const std::lock_guard lock(mutex_);
  apart_.erase(argument);
  return !argument->done.ready();
}

/// Memory of a copy that it has opened goes with what is known of the object here. What is not known (any
/// more) is not forgotten when its owner dies or frees it: nobody else would give that memory back.
void Objects::done(const ObjectName& name, const FetchPtr& fetch, Result<BytesPtr> bytes) {
  bool gives_back = false;
  {
    const std::lock_guard lock(mutex_);
    const auto at = here_.find(name);
    const bool is_known = at != here_.end() && at->second == fetch;
    gives_back = fetch->is_copy && !closed_ && !(bytes && is_known);
    if (!bytes && is_known) here_.erase(at);
    if (!bytes && fetch->is_argument) {
      auto& argument = static_cast<ArgumentFetch&>(*fetch);
      argument.of_call->known -= std::exchange(argument.known_bytes, 0);
    }
  }
  if (gives_back) gate_.drop_region(copy_region(name));
  if (bytes) fetch->bytes = *bytes;
  const NoWaitScope no_wait;  // it may be the disk's thread, for which others wait
  fetch->done.resolve(bytes ? Outcome(wire::Bytes{}) : Outcome(bytes.error()));
}

void Objects::forget(const ObjectName& name) {
  FetchPtr gone;  // null: it has been let go, but others of the node may have it still
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = here_.find(name); at != here_.end()) {
      gone = std::move(at->second);
      here_.erase(at);
    }
    let_go_.erase(name);
  }
  const bool small = gone != nullptr && gone->done.ready() && gone->bytes != nullptr &&
                     gone->bytes->view().size() <= kInlineBytes;
  if (!small) gate_.drop_region(copy_region(name));  // it may be none: then nothing has that name
}

Result<std::shared_ptr<const References>> Objects::references(wire::Bytes& body, bool waits) {
  auto given = Given::cut(body);
  if (!given) return given.error();
  std::vector<FetchPtr> fetches;
  const auto of_call = std::make_shared<CallBytes>(CallBytes{0, MonotonicClock().now()});
  for (const auto& name : given->names) fetches.push_back(fetch(name, waits, of_call));
  return std::shared_ptr<const References>(std::make_shared<References>(given->places, std::move(fetches)));
}

}  // namespace troupe::objects
