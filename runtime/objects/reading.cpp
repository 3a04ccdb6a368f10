// How a process comes by the bytes of an object.
#include <algorithm>

#include "runtime/core/log.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"

namespace troupe::objects {
namespace {

/// Of one object: half of what may be under way between two processes.
constexpr std::size_t kPartsUnderWay = 4;
/// What no host has. Sums of such lengths do not overflow.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 48;
/// So often an object may be gone from where its owner says that it is, before it can be mapped.
constexpr int kMostTries = 20;
/// Its owner is asked again twice at once, then after a pause, which doubles up to this.
constexpr Duration kLongestPause = std::chrono::milliseconds(250);
/// An argument's copy that waits for room looks so often.
constexpr Duration kLooksForRoom = std::chrono::milliseconds(20);

/// Of an argument of a call.
struct ArgumentFetch : Fetch {
  ArgumentFetch(Waiter* waiter, std::shared_ptr<CallBytes> of) : Fetch(waiter), of_call(std::move(of)) {
    is_argument = true;
  }
  const std::shared_ptr<CallBytes> of_call;
};

Duration pause_before(int tries) {
  const Duration pause = std::chrono::milliseconds(1) * (1 << std::min(tries, 10));
  return tries < 2 ? Duration::zero() : std::min(pause, kLongestPause);
}

ErrorInfo comes_and_goes(const ObjectName& name) {
  return {ErrorCode::kLimit, "cannot read an object of process " + to_string(name.owner.process),
          "its memory was gone " + std::to_string(kMostTries) +
              " times before it could be mapped: the store is too small for what is in use",
          "ask again when less is in use, or set TROUPE_REGIONS_BYTES"};
}

}  // namespace

std::shared_ptr<Fetch> Objects::fetch(const ObjectName& name, bool waits,
                                      const std::shared_ptr<CallBytes>& of_call) {
  FetchPtr fresh = of_call == nullptr ? std::make_shared<Fetch>(waiter_)
                                      : std::make_shared<ArgumentFetch>(waiter_, of_call);
  fresh->waits = waits || !name.is_computed();
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

void Objects::locate(const ObjectName& name, FetchPtr fetch, int tries, const ObjectName& unread,
                     const std::string& why) {
  const LocateAsk question{name.number, tries > 0, fetch->waits, unread, why};
  const auto said = ask(name.owner, kLocate, wire::encode(question));
  said->on_ready([weak = weak_from_this(), said, name, fetch = std::move(fetch), tries] {
    if (const auto self = weak.lock()) self->located(name, fetch, tries, said->outcome());
  });
}

void Objects::located(const ObjectName& name, const FetchPtr& fetch, int tries, const Outcome& outcome) {
  if (!outcome.ok()) {
    if (locates_again(name, fetch, tries, outcome)) return;
    ErrorInfo why = outcome.error();
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
    if (lent && lent->answer.full) lent = lent->answer.why;
    if (!lent) return self->done(name, fetch, lent.error());
    auto read = near ? read_segment(lent->fd, name.number, bytes) : read_copy(lent->fd, name, bytes);
    fetch->is_copy = !near;
    if (read || read.error().code != ErrorCode::kUnavailable) return self->done(name, fetch, std::move(read));
    // Its owner has spilled the object meanwhile, or has freed it and put another one where it lay. Those
    // that held a copy ended or made room: then the node has made new memory for us.
    const bool over = tries >= kMostTries;
    if (near ? !is_sealed(lent->fd) : over && !is_copy_of(lent->fd, name)) self->gate_.drop_region(key);
    if (over) return self->done(name, fetch, comes_and_goes(name));
    const Duration pause = pause_before(tries);
    if (pause == Duration::zero()) return self->locate(name, fetch, tries + 1);
    self->gate_.later(pause, [weak, name, fetch, tries] {
      if (const auto again = weak.lock()) again->locate(name, fetch, tries + 1);
    });
  };
  obtain(ask_for(key, at.bytes + kTagBytes), at.bytes + kTagBytes, then);
}

void Objects::make_copy(const ObjectName& name, const FetchPtr& fetch, const Location& at) {
  const std::uint64_t bytes = at.bytes;
  {
    const std::lock_guard lock(mutex_);
    making_[name] = at.ticket;
  }
  if (fetch->is_argument) {
    const auto& of_call = static_cast<const ArgumentFetch&>(*fetch).of_call;
    bool is_first = false;
    {
      const std::lock_guard lock(mutex_);
      is_first = copies_.add({name, fetch, bytes + kTagBytes, of_call, {}}, MonotonicClock().now());
    }
    if (is_first) next_copy();  // else whoever is goes on with it
    return;
  }
  obtain(ask_for(copy_region(name), bytes + kTagBytes), bytes + kTagBytes,
         [weak = weak_from_this(), name, fetch, bytes](Result<Lent> lent) {
           if (const auto self = weak.lock()) self->copy_into(name, fetch, bytes, std::move(lent));
         });
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
  const auto pull = std::make_shared<Pull>();
  pull->name = name;
  pull->fetch = fetch;
  pull->bytes = bytes;
  if (lent && lent->answer.full) lent = lent->answer.why;
  if (!lent) {
    pull->failed = lent.error();
    return end_pull(pull);
  }
  pull->fd = std::move(lent->fd);
  pull->was_there = is_copy_of(pull->fd, name);  // it was made before
  if (pull->was_there) return end_pull(pull);
  this->pull(pull);
}

/// Asks for what is missing, a few parts at a time.
void Objects::pull_on(const PullPtr& pull) {
  for (;;) {
    PartAsk part{pull->name.number, 0, 0};
    bool over = false;
    {
      const std::lock_guard lock(pull->mutex);
      const bool more = !pull->failed && pull->next < pull->bytes;
      if (more && pull->under_way >= kPartsUnderWay) return;
      if (!more && pull->under_way > 0) return;
      over = !more;
      if (more) {
        part.offset = pull->next;
        part.bytes = std::min(kPartBytes, pull->bytes - pull->next);
        pull->next += part.bytes;
        ++pull->under_way;
      } else {
        pull->under_way = 1;  // nobody ends it twice
      }
    }
    if (over) return end_pull(pull);
    const auto said = ask(pull->name.owner, kPart, wire::encode(part));
    said->on_ready([weak = weak_from_this(), said, pull, offset = part.offset] {
      if (const auto self = weak.lock()) self->pulled(pull, offset, said->outcome());
    });
  }
}

void Objects::pulled(const PullPtr& pull, std::uint64_t offset, const Outcome& outcome) {
  std::optional<ErrorInfo> failed;
  if (!outcome.ok()) {
    failed = outcome.error();
  } else if (outcome->size() != std::min(kPartBytes, pull->bytes - offset)) {
    failed = refused_question();
  } else if (auto wrote = write_at(pull->fd, offset, *outcome); !wrote) {
    failed = wrote.error();
  }
  {
    const std::lock_guard lock(pull->mutex);
    --pull->under_way;
    if (failed && !pull->failed) pull->failed = std::move(failed);
  }
  pull_on(pull);
}

void Objects::end_pull(const PullPtr& pull) {
  const auto map = [&pull]() -> Result<BytesPtr> {
    if (pull->failed) return *pull->failed;
    return pull->was_there ? read_copy(pull->fd, pull->name, pull->bytes)
                           : finish_copy(pull->fd, pull->name, pull->bytes);
  };
  auto mapped = map();
  pull->fetch->is_copy = true;
  if (!mapped.ok()) gate_.drop_region(copy_region(pull->name));  // before another process makes the copy
  CopiedTell told{pull->name.number, 0, mapped.ok()};
  {
    const std::lock_guard lock(mutex_);
    if (const auto making = making_.extract(pull->name)) told.ticket = making.mapped();
  }
  tell_surely(pull->name.owner, kCopied, wire::encode(told));
  if (!mapped.ok() && mapped.error().code == ErrorCode::kActorDied)
    mapped = lost_by_death(pull->name, mapped.error().why);
  done(pull->name, pull->fetch, std::move(mapped));
}

void Objects::done(const ObjectName& name, const FetchPtr& fetch, Result<BytesPtr> bytes) {
  if (!bytes) {
    const std::lock_guard lock(mutex_);
    if (const auto at = here_.find(name); at != here_.end() && at->second == fetch) here_.erase(at);
  } else {
    fetch->bytes = *bytes;
  }
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
  const auto of_call = std::make_shared<CallBytes>();
  for (const auto& name : given->names) fetches.push_back(fetch(name, waits, of_call));
  return std::shared_ptr<const References>(std::make_shared<References>(given->places, std::move(fetches)));
}

}  // namespace troupe::objects
