#include "runtime/objects/objects.hpp"

#include "runtime/core/log.hpp"
#include "runtime/host/may_wait.hpp"

namespace troupe::objects {
namespace {

// Operations of a process's actor 0.
constexpr std::uint64_t kLocate = 1;
constexpr std::uint64_t kPart = 2;
constexpr std::uint64_t kCopied = 3;
constexpr std::uint64_t kAddBorrower = 4;
constexpr std::uint64_t kGiveBack = 5;
constexpr std::uint64_t kFreed = 6;

struct LocateAsk {
  std::uint64_t number = 0;
  bool again = false;
};
struct Location {
  Where where = Where::kGone;
  std::uint64_t bytes = 0;
  wire::Bytes value;  ///< of a small one
};
struct PartAsk {
  std::uint64_t number = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
struct CopiedTell {
  std::uint64_t number = 0;
  bool ok = false;
};
struct NumberTell {
  std::uint64_t number = 0;
};

constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20;
constexpr std::size_t kPartsUnderWay =
    4;  ///< of one object: half of what may be under way between two processes
constexpr Duration kAgain = std::chrono::milliseconds(200);
constexpr Duration kStoreAnswers = std::chrono::seconds(30);
/// References that a process passed on before it died may still be on their way to the owner.
constexpr Duration kMourning = std::chrono::seconds(5);

std::string text_of(const ObjectName& name) {
  return "object " + to_hex(name.number) + " of process " + to_string(name.owner.process) + " on node " +
         to_string(name.owner.node);
}

ErrorInfo lost(const ObjectName& name, std::string why) {
  return {ErrorCode::kObjectLost, text_of(name) + " is lost", std::move(why),
          "put it again; an object lives as long as the process that made it"};
}
ErrorInfo freed(const ObjectName& name) {
  return lost(name, "nobody held a reference to it any more");
}

/// Whether an answer says that the link broke, rather than what became of the question.
bool link_broke(const Outcome& outcome) {
  return !outcome.ok() && outcome.error().code == ErrorCode::kUnavailable;
}

ErrorInfo refused_question() {
  return {ErrorCode::kBadInput, "refused a question about an object", "it does not decode",
          "both processes must run the same build"};
}

}  // namespace

Handle::~Handle() {
  if (const auto objects = objects_.lock()) objects->dropped(name_);
}

void Objects::close() {
  std::unordered_map<std::uint64_t, Responder> questions;
  std::unordered_map<ObjectName, FetchPtr> here;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  questions.swap(questions_);  // their responders fail them
  here.swap(here_);
}

bool Objects::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::shared_ptr<CallState> Objects::ask(ProcessAddress to, std::uint64_t operation, wire::Bytes body) {
  const NoWaitScope no_wait;
  return gate_.call({to.node, to.process, {}}, operation, std::move(body), false);
}

void Objects::tell_surely(ProcessAddress to, std::uint64_t operation, wire::Bytes body) {
  const auto told = ask(to, operation, body);
  told->on_ready([weak = weak_from_this(), told, to, operation, body = std::move(body)]() mutable {
    const auto self = weak.lock();
    if (self == nullptr || !link_broke(told->outcome())) return;
    self->gate_.later(kAgain, [weak, to, operation, again = std::move(body)]() mutable {
      const auto here = weak.lock();
      if (here != nullptr && !here->is_closed()) here->tell_surely(to, operation, std::move(again));
    });
  });
}

// What this process owns.

std::uint64_t Objects::next_number() {
  const std::lock_guard lock(mutex_);
  return ++last_number_;
}

HandlePtr Objects::own(std::uint64_t number, std::shared_ptr<const ObjectBytes> bytes, bool shared) {
  auto value = std::make_shared<Fetch>(waiter_);
  const std::size_t size = bytes->view().size();
  value->bytes = std::move(bytes);
  value->done.resolve(wire::Bytes{});
  const std::lock_guard lock(mutex_);
  if (!shared && owned_.inline_bytes() + size > kMostInlineBytes) {
    throw LimitExceeded({ErrorCode::kLimit, "cannot put an object of " + std::to_string(size) + " bytes",
                         "the small objects of this process take " + std::to_string(owned_.inline_bytes()) +
                             " bytes, and " + std::to_string(kMostInlineBytes) + " is the limit",
                         "drop references that are not needed any more"});
  }
  owned_.add(number, size, shared);
  values_.emplace(number, std::move(value));
  return std::make_shared<Handle>(weak_from_this(), own_name(number));
}

HandlePtr Objects::put(wire::Bytes&& bytes) {
  if (bytes.size() > kInlineBytes) return put(wire::ByteView(bytes));
  return own(next_number(), std::make_shared<ObjectBytes>(std::move(bytes)), false);
}

HandlePtr Objects::put(wire::ByteView bytes) {
  if (bytes.size() <= kInlineBytes)
    return own(next_number(), std::make_shared<ObjectBytes>(wire::Bytes(bytes.begin(), bytes.end())), false);
  if (!thread_may_wait()) {
    throw BadConfig("cannot put an object of " + std::to_string(bytes.size()) + " bytes in a light actor",
                    "it waits for shared memory, and a light actor may not wait",
                    "spawn the actor with .isolated = true, or put it where the actor is called");
  }
  const std::uint64_t number = next_number();
  const std::string key = region_key(own_name(number));
  const auto state = std::make_shared<CallState>(waiter_);
  const auto fd = std::make_shared<UniqueFd>();
  ask_region_(key, bytes.size(), [state, fd](Result<UniqueFd> got) {
    if (got) *fd = *std::move(got);
    state->resolve(got ? Outcome(wire::Bytes{}) : Outcome(got.error()));
  });
  const std::string what = "cannot put an object of " + std::to_string(bytes.size()) + " bytes";
  if (!state->wait(kStoreAnswers))
    throw Timeout(
        {ErrorCode::kTimeout, what, "the node did not answer within 30 s", "see whether it is stuck"});
  if (!state->outcome().ok()) {
    ErrorInfo why = state->outcome().error();
    why.why = why.what + ": " + why.why;
    why.what = what;
    throw_error(std::move(why));
  }
  auto mapped = [&]() -> Result<std::shared_ptr<const ObjectBytes>> {
    if (auto wrote = write_at(*fd, 0, bytes); !wrote) return wrote.error();
    if (auto sealed = seal(*fd); !sealed) return sealed.error();
    return ObjectBytes::map(*fd, bytes.size());
  }();
  if (!mapped) {
    gate_.drop_region(key);
    throw_error(mapped.error());
  }
  return own(number, *std::move(mapped), true);
}

void Objects::dropped(const ObjectName& name) {
  OwnerTable::Actions owners;
  BorrowTable::Actions borrowers;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (name.owner == gate_.address()) {
      owned_.drop(name.number, owners);
    } else {
      borrowed_.drop(name, borrowers);
    }
  }
  carry_out(std::move(owners));
  carry_out(std::move(borrowers));
}

void Objects::carry_out(OwnerTable::Actions actions) {
  for (const auto& action : actions) {
    if (const auto* where = std::get_if<OwnerTable::Answer>(&action)) {
      answer(*where);
      continue;
    }
    const auto& free = std::get<OwnerTable::Free>(action);
    FetchPtr value;  // goes without the lock
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = values_.find(free.number); at != values_.end()) {
        value = std::move(at->second);
        values_.erase(at);
      }
    }
    if (free.shared) gate_.drop_region(region_key(own_name(free.number)));
    for (const auto& reader : free.readers)
      tell_surely(reader, kFreed, wire::encode(NumberTell{free.number}));
  }
}

void Objects::answer(const OwnerTable::Answer& where) {
  std::optional<Responder> responder;
  FetchPtr value;
  {
    const std::lock_guard lock(mutex_);
    const auto at = questions_.find(where.ticket);
    if (at == questions_.end()) return;
    responder.emplace(std::move(at->second));
    questions_.erase(at);
    if (const auto found = values_.find(where.number); found != values_.end()) value = found->second;
  }
  if (where.where == Where::kGone || value == nullptr) return responder->fail(freed(own_name(where.number)));
  Location location{where.where, value->bytes->view().size(), {}};
  if (where.where == Where::kInline)
    location.value.assign(value->bytes->view().begin(), value->bytes->view().end());
  responder->answer(wire::encode(location));
}

void Objects::give_part(std::uint64_t number, std::uint64_t offset, std::uint64_t bytes,
                        Responder& responder) {
  FetchPtr value;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = values_.find(number); at != values_.end()) value = at->second;
  }
  if (value == nullptr) return responder.fail(freed(own_name(number)));
  const wire::ByteView all = value->bytes->view();
  if (offset > all.size() || bytes > all.size() - offset || bytes > kPartBytes)
    return responder.fail(refused_question());
  const auto part = all.subspan(offset, bytes);
  responder.answer(wire::Bytes(part.begin(), part.end()));
}

void Objects::asked(ProcessAddress from, std::uint64_t operation, const wire::Bytes& body,
                    Responder responder) {
  OwnerTable::Actions actions;
  if (operation == kLocate) {
    const auto ask = wire::decode<LocateAsk>(body);
    if (!ask) return responder.fail(refused_question());
    const std::lock_guard lock(mutex_);
    const std::uint64_t ticket = ++last_ticket_;
    questions_.emplace(ticket, std::move(responder));
    owned_.locate(ask->number, from, ask->again, ticket, actions);
  } else if (operation == kPart) {
    const auto ask = wire::decode<PartAsk>(body);
    if (!ask) return responder.fail(refused_question());
    return give_part(ask->number, ask->offset, ask->bytes, responder);
  } else if (operation == kCopied) {
    const auto told = wire::decode<CopiedTell>(body);
    if (!told) return responder.fail(refused_question());
    const std::lock_guard lock(mutex_);
    owned_.copied(told->number, from, told->ok, actions);
  } else {
    const auto told = wire::decode<NumberTell>(body);
    if (!told) return responder.fail(refused_question());
    if (operation == kFreed) {
      forget({from, told->number});
    } else if (operation == kAddBorrower) {
      const std::lock_guard lock(mutex_);
      if (!owned_.borrow(told->number, from)) responder.fail(freed(own_name(told->number)));
    } else if (operation == kGiveBack) {
      const std::lock_guard lock(mutex_);
      owned_.give_back(told->number, from, actions);
    } else {
      return responder.fail(refused_question());
    }
  }
  if (operation != kLocate) responder.answer({});
  carry_out(std::move(actions));
}

// What it borrows.

HandlePtr Objects::hold(const ObjectName& name) {
  BorrowTable::Actions actions;
  {
    const std::lock_guard lock(mutex_);
    if (name.owner == gate_.address()) {
      owned_.hold(name.number);
    } else {
      borrowed_.hold(name, actions);
      if (!borrowed_.is_settled(name) && this_thread.borrows != nullptr) {
        this_thread.borrows->push_back(unsettled_[name].emplace_back(std::make_shared<CallState>(nullptr)));
      }
    }
  }
  carry_out(std::move(actions));
  return std::make_shared<Handle>(weak_from_this(), name);
}

void Objects::carry_out(BorrowTable::Actions actions) {
  for (const auto& action : actions) {
    const ObjectName name = action.name;
    if (action.kind == BorrowTable::Action::kSettled) {
      std::vector<std::shared_ptr<CallState>> waiting;
      {
        const std::lock_guard lock(mutex_);
        if (auto found = unsettled_.extract(name)) waiting = std::move(found.mapped());
      }
      for (const auto& one : waiting) one->resolve(wire::Bytes{});
      continue;
    }
    const bool add = action.kind == BorrowTable::Action::kAdd;
    const auto said = ask(name.owner, add ? kAddBorrower : kGiveBack, wire::encode(NumberTell{name.number}));
    said->on_ready([weak = weak_from_this(), said, name] {
      if (const auto self = weak.lock()) self->borrow_answered(name, said->outcome());
    });
  }
}

void Objects::borrow_answered(const ObjectName& name, const Outcome& outcome) {
  const auto take = [name](Objects& self, BorrowTable::Said said) {
    BorrowTable::Actions actions;
    {
      const std::lock_guard lock(self.mutex_);
      if (self.closed_) return;
      self.borrowed_.answered(name, said, actions);
    }
    self.carry_out(std::move(actions));
  };
  if (!link_broke(outcome))
    return take(*this, outcome.ok() ? BorrowTable::Said::kDone : BorrowTable::Said::kLost);
  gate_.later(kAgain, [weak = weak_from_this(), take] {
    if (const auto self = weak.lock()) take(*self, BorrowTable::Said::kAgain);
  });
}

// What it reads.

std::shared_ptr<Fetch> Objects::fetch(const ObjectName& name) {
  auto fresh = std::make_shared<Fetch>(waiter_);
  std::optional<ErrorInfo> why;
  {
    const std::lock_guard lock(mutex_);
    if (name.owner == gate_.address()) {
      if (const auto at = values_.find(name.number); at != values_.end()) return at->second;
      why = freed(name);
    } else if (const std::string* reason = dead_.find(name.owner)) {
      why = lost(name, "the process that made it is gone: " + *reason);
    } else if (const std::string* node = dead_nodes_.find(name.owner.node)) {
      why = lost(name, "the node of the process that made it is gone: " + *node);
    } else {
      const auto [at, added] = here_.emplace(name, fresh);
      if (!added) return at->second;
    }
  }
  if (why) {
    fresh->done.resolve(*std::move(why));
  } else {
    locate(name, fresh, false);
  }
  return fresh;
}

void Objects::locate(const ObjectName& name, FetchPtr fetch, bool again) {
  const auto said = ask(name.owner, kLocate, wire::encode(LocateAsk{name.number, again}));
  said->on_ready([weak = weak_from_this(), said, name, fetch = std::move(fetch), again] {
    if (const auto self = weak.lock()) self->located(name, fetch, again, said->outcome());
  });
}

void Objects::located(const ObjectName& name, const FetchPtr& fetch, bool again, const Outcome& outcome) {
  if (!outcome.ok()) {
    ErrorInfo why = outcome.error();
    if (why.code == ErrorCode::kActorDied) why = lost(name, "the process that made it is gone: " + why.why);
    return done(name, fetch, std::move(why));
  }
  auto location = wire::decode<Location>(*outcome);
  if (!location) return done(name, fetch, location.error());
  switch (location->where) {
    case Where::kInline:
      return done(
          name, fetch,
          std::shared_ptr<const ObjectBytes>(std::make_shared<ObjectBytes>(std::move(location->value))));
    case Where::kHere:
      return open_copy(name, fetch, location->bytes, again);
    case Where::kFetch:
      return make_copy(name, fetch, location->bytes);
    case Where::kGone:
      return done(name, fetch, freed(name));
  }
}

void Objects::open_copy(const ObjectName& name, const FetchPtr& fetch, std::uint64_t bytes, bool again) {
  ask_region_(region_key(name), bytes,
              [weak = weak_from_this(), name, fetch, bytes, again](Result<UniqueFd> fd) {
                const auto self = weak.lock();
                if (self == nullptr) return;
                if (!fd) return self->done(name, fetch, fd.error());
                if (is_sealed(*fd)) return self->done(name, fetch, ObjectBytes::map(*fd, bytes));
                // The processes that held it ended, so the node made new memory for us. It is empty.
                if (!again) return self->locate(name, fetch, true);
                self->gate_.drop_region(region_key(name));
                self->done(name, fetch, lost(name, "its memory is gone"));
              });
}

/// A copy on its way to this node.
struct Objects::Pull {
  ObjectName name;
  FetchPtr fetch;
  UniqueFd fd;
  std::uint64_t bytes = 0;
  std::mutex mutex;  ///< guards what follows
  std::uint64_t next = 0;
  std::size_t under_way = 0;
  std::optional<ErrorInfo> failed;
};

void Objects::make_copy(const ObjectName& name, const FetchPtr& fetch, std::uint64_t bytes) {
  ask_region_(region_key(name), bytes, [weak = weak_from_this(), name, fetch, bytes](Result<UniqueFd> fd) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    const auto pull = std::make_shared<Pull>();
    pull->name = name;
    pull->fetch = fetch;
    pull->bytes = bytes;
    if (!fd) {
      pull->failed = fd.error();
      return self->end_pull(pull);
    }
    pull->fd = *std::move(fd);
    if (is_sealed(pull->fd)) return self->end_pull(pull);  // it was made before
    self->pull_on(pull);
  });
}

/// Asks for what is missing, a few parts at a time.
void Objects::pull_on(const std::shared_ptr<Pull>& pull) {
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

void Objects::pulled(const std::shared_ptr<Pull>& pull, std::uint64_t offset, const Outcome& outcome) {
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

void Objects::end_pull(const std::shared_ptr<Pull>& pull) {
  if (!pull->failed && !is_sealed(pull->fd)) {
    if (auto sealed = seal(pull->fd); !sealed) pull->failed = sealed.error();
  }
  auto mapped = pull->failed ? Result<std::shared_ptr<const ObjectBytes>>(*pull->failed)
                             : ObjectBytes::map(pull->fd, pull->bytes);
  tell_surely(pull->name.owner, kCopied, wire::encode(CopiedTell{pull->name.number, mapped.ok()}));
  if (!mapped.ok() && mapped.error().code == ErrorCode::kActorDied)
    mapped = lost(pull->name, "the process that made it is gone: " + mapped.error().why);
  done(pull->name, pull->fetch, std::move(mapped));
}

void Objects::done(const ObjectName& name, const FetchPtr& fetch,
                   Result<std::shared_ptr<const ObjectBytes>> bytes) {
  if (!bytes) {
    const std::lock_guard lock(mutex_);
    if (const auto at = here_.find(name); at != here_.end() && at->second == fetch) here_.erase(at);
  } else {
    fetch->bytes = *bytes;
  }
  fetch->done.resolve(bytes ? Outcome(wire::Bytes{}) : Outcome(bytes.error()));
}

void Objects::forget(const ObjectName& name) {
  FetchPtr gone;
  {
    const std::lock_guard lock(mutex_);
    const auto at = here_.find(name);
    if (at == here_.end()) return;
    gone = std::move(at->second);
    here_.erase(at);
  }
  const bool small =
      gone->done.ready() && gone->bytes != nullptr && gone->bytes->view().size() <= kInlineBytes;
  if (!small && name.owner.node != gate_.address().node) gate_.drop_region(region_key(name));
}

Result<std::shared_ptr<const References>> Objects::references(wire::Bytes& body) {
  auto given = Given::cut(body);
  if (!given) return given.error();
  std::vector<FetchPtr> fetches;
  for (const auto& name : given->names) fetches.push_back(fetch(name));
  return std::shared_ptr<const References>(std::make_shared<References>(given->places, std::move(fetches)));
}

// Deaths.

void Objects::owners_down(const OwnerTable::IsDown& is_down, const std::string& reason) {
  std::vector<ObjectName> theirs;
  OwnerTable::Actions actions;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, fetch] : here_) {
      if (is_down(name.owner)) theirs.push_back(name);
    }
    owned_.readers_down(is_down, actions);
  }
  if (!theirs.empty()) log(LogLevel::kDebug, std::to_string(theirs.size()) + " objects are lost: " + reason);
  for (const auto& name : theirs) {
    forget(name);
    if (name.owner.node == gate_.address().node) gate_.drop_region(region_key(name));
  }
  carry_out(std::move(actions));
  gate_.later(kMourning, [weak = weak_from_this(), is_down] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    OwnerTable::Actions freed_now;
    {
      const std::lock_guard lock(self->mutex_);
      if (self->closed_) return;
      self->owned_.borrowers_down(is_down, freed_now);
    }
    self->carry_out(std::move(freed_now));
  });
}

void Objects::process_down(ProcessAddress process, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    dead_.remember(process, reason);
  }
  owners_down([process](ProcessAddress p) { return p == process; }, reason);
}

void Objects::node_down(NodeId node, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    dead_nodes_.remember(node, reason);
  }
  owners_down([node](ProcessAddress p) { return p.node == node; }, reason);
}

Objects::Counts Objects::counts() const {
  const std::lock_guard lock(mutex_);
  return {owned_.size(), borrowed_.size(), here_.size()};
}

}  // namespace troupe::objects
