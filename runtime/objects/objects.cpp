#include "runtime/objects/objects.hpp"

#include <algorithm>

#include "runtime/core/log.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/host/node_link.hpp"
#include "runtime/objects/object_messages.hpp"

namespace troupe::objects {
namespace {

constexpr std::string_view kOwnerGone = "the process that made it is gone: ";
constexpr std::string_view kOwnersNodeGone = "its owner's node died: ";
constexpr std::string_view kNotYet = "it is being computed";

std::string text_of(const ObjectName& name) {
  return "object " + to_hex(name.number) + " of process " + to_string(name.owner.process) + " on node " +
         to_string(name.owner.node);
}

}  // namespace

ErrorInfo lost(const ObjectName& name, std::string why) {
  return {ErrorCode::kObjectLost, text_of(name) + " is lost", std::move(why),
          std::string(name.is_computed() ? "compute" : "put") +
              " it again; an object lives as long as the process that made it, and that one's node"};
}
ErrorInfo lost_with_owner(const ObjectName& name, const std::string& why, OwnerDeath death) {
  return lost(name, std::string(death == OwnerDeath::kOfNode ? kOwnersNodeGone : kOwnerGone) + why);
}
bool is_lost_with_owner(const ErrorInfo& error) {
  return error.code == ErrorCode::kObjectLost &&
         (error.why.starts_with(kOwnerGone) || error.why.starts_with(kOwnersNodeGone));
}
ErrorInfo not_computed_yet(const ObjectName& name) {
  return {ErrorCode::kObjectLost, text_of(name) + " has no value now", std::string(kNotYet), ""};
}
bool is_not_computed_yet(const ErrorInfo& error) {
  return error.code == ErrorCode::kObjectLost && error.why == kNotYet && error.origin.empty();
}
ErrorInfo freed(const ObjectName& name) {
  return lost(name, "nobody held a reference to it any more");
}

bool link_broke(const Outcome& outcome) {
  return !outcome.ok() && outcome.error().code == ErrorCode::kUnavailable;
}

ErrorInfo process_ends() {
  return {ErrorCode::kUnavailable, "no shared memory", "this process ends", ""};
}

ErrorInfo refused_question() {
  return {ErrorCode::kBadInput, "refused a question about an object", "it does not decode",
          "both processes must run the same build"};
}

Handle::~Handle() {
  if (const auto objects = objects_.lock()) objects->dropped(name_);
}

void Objects::close(const std::string& why) {
  std::unordered_map<std::uint64_t, Responder> questions;
  std::unordered_map<ObjectName, FetchPtr> here;
  std::set<FetchPtr> apart;
  std::vector<HandlePtr> offers;
  std::unordered_map<std::uint64_t, Computed> unknown;
  std::vector<std::pair<FetchPtr, ErrorInfo>> unanswered;
  decltype(received_) received;
  SegmentPool pool;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) why_closed_ = why;
    closed_ = true;
    std::swap(pool, pool_);
    offers = offers_.clear();
    unknown.swap(computed_);
    for (const auto& [number, one] : unknown) {
      const auto& why_none = at_end_.emplace(number, lost_at_end(number, *one.known)).first->second;
      unanswered.emplace_back(one.known, why_none);
    }
    received.swap(received_);
    questions.swap(questions_);  // their responders fail them
    here.swap(here_);
    apart.swap(apart_);
  }
  taken_.notify_all();
  argument_gone_.notify_all();
  for (const auto& [name, fetch] : here) fetch->done.resolve(is_over());  // those that are there stay so
  for (const auto& fetch : apart) fetch->done.resolve(is_over());
  for (const auto& [known, why_none] : unanswered) known->done.resolve(why_none);
}

void Objects::stop() {
  end_threads();
  std::set<std::shared_ptr<CallState>> borrowings;
  std::vector<FetchPtr> coming;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    borrowings.swap(borrowings_);
    for (const auto& [number, own] : values_) coming.push_back(own.value);
  }
  for (const auto& one : borrowings) one->resolve(process_ends());
  for (const auto& one : coming) one->done.resolve(process_ends());  // those that are there stay so
}

void Objects::no_other_node(const std::string& why) {
  const std::lock_guard lock(mutex_);
  why_closed_ = why;
  is_for_good_ = true;
}

ErrorInfo Objects::lost_by_death(const ObjectName& name, const std::string& why) const {
  const std::lock_guard lock(mutex_);
  const bool is_node = dead_nodes_.find(name.owner.node) != nullptr;
  return lost_with_owner(name, why, is_node ? OwnerDeath::kOfNode : OwnerDeath::kOfProcess);
}

ErrorInfo Objects::is_over() const {
  const std::lock_guard lock(mutex_);
  if (why_closed_.empty()) return process_ends();
  return own_node_gone("an object does not come", why_closed_,
                       is_for_good_ ? kStartAgain : "its driver gets another node: put or compute it again");
}

/// With mutex_, of a computed one. What has no value has lost none.
ErrorInfo Objects::lost_at_end(std::uint64_t number, const Fetch& known) const {
  if (why_closed_.empty()) return process_ends();
  if (known.done.ready() && !known.done.outcome().ok()) return known.done.outcome().error();
  if (known.done.ready()) return lost_with_owner(own_name(number), why_closed_, OwnerDeath::kOfNode);
  ErrorInfo why =
      own_node_gone("a task has no answer", why_closed_, is_for_good_ ? kStartAgain : kSubmitThere);
  why.origin = kComputes;
  return why;
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
    self->gate_.later(kSaysAgain, [weak, to, operation, again = std::move(body)]() mutable {
      const auto here = weak.lock();
      if (here != nullptr && !here->is_closed()) here->tell_surely(to, operation, std::move(again));
    });
  });
}

// What this process owns.

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
    if (const auto* asked = std::get_if<OwnerTable::Broken>(&action)) {
      broken(asked->ticket);
      continue;
    }
    if (const auto* what = std::get_if<OwnerTable::Check>(&action)) {
      check(*what);
      continue;
    }
    const auto& free = std::get<OwnerTable::Free>(action);
    Own gone;  // without the lock
    decltype(computed_)::node_type unknown;
    {
      const std::lock_guard lock(mutex_);
      if (!owned_.contains(free.number)) unknown = computed_.extract(free.number);  // else it lives again
      if (const auto at = values_.find(free.number); at != values_.end()) {
        gone = std::move(at->second);
        values_.erase(at);
      }
      spills_.erase(free.number);
      offers_.ended(free.number);
    }
    taken_.notify_all();
    if (gone.value != nullptr && !gone.value->done.ready())
      gone.value->done.resolve(freed(own_name(free.number)));
    gone.value.reset();
    if (!unknown.empty()) unknown.mapped().known->done.resolve(freed(own_name(free.number)));
    if (own_name(free.number).is_computed()) {
      if (const auto told = hooks()) told->freed(free.number);
    }
    std::vector<SegmentPtr> segments;
    if (gone.segment != nullptr) segments.push_back(std::move(gone.segment));
    retire(std::move(segments));
    if (gone.place)
      on_disk([place = *gone.place](Objects& self, const ErrorInfo* why_not) {
        if (why_not == nullptr) self.files_.drop(place);
      });
    for (const auto& reader : free.readers)
      tell_surely(reader, kFreed, wire::encode(NumberTell{free.number}));
  }
}

void Objects::answer(const OwnerTable::Answer& where) {
  std::optional<Responder> responder;
  FetchPtr value;
  Location location{where.where, 0, 0, {}};
  location.ticket = where.ticket;
  auto want = SpillTable::Want::kHere;
  bool is_answer = false;
  {
    const std::lock_guard lock(mutex_);
    const auto at = questions_.find(where.ticket);
    if (at == questions_.end()) return;
    responder.emplace(std::move(at->second));
    questions_.erase(at);
    if (const auto found = values_.find(where.number); found != values_.end()) {
      if (where.in_segment) want = spills_.want(where.number);
      value = found->second.value;
      location.bytes = found->second.bytes;
      is_answer = found->second.is_answer;
      if (found->second.segment != nullptr) location.region = found->second.segment->region();
    }
  }
  if (where.where == Where::kGone || value == nullptr) return responder->fail(freed(own_name(where.number)));
  if (want == SpillTable::Want::kRead) restore(where.number);
  if (want != SpillTable::Want::kHere) {
    Fetch& fetch = *value;
    fetch.done.on_ready([weak = weak_from_this(), value = std::move(value), where, is_answer,
                         bytes = location.bytes, later = std::make_shared<Responder>(std::move(*responder))] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      if (!value->done.outcome().ok()) return later->fail(value->done.outcome().error());
      if (value->why_beside) {  // another process cannot map that
        if (is_answer) return later->answer(wire::encode(Location{Where::kFetch, bytes, 0, {}}));
        return later->fail(*value->why_beside);
      }
      {
        const std::lock_guard lock(self->mutex_);
        self->questions_.emplace(where.ticket, std::move(*later));
      }
      self->answer(where);
    });
    return;
  }
  if (where.where == Where::kInline)
    location.value.assign(value->bytes->view().begin(), value->bytes->view().end());
  responder->answer(wire::encode(location));
}

/// Should the question's call live all the same, it ends as if it had not.
void Objects::broken(std::uint64_t ticket) {
  std::optional<Responder> responder;
  {
    const std::lock_guard lock(mutex_);
    const auto at = questions_.find(ticket);
    if (at == questions_.end()) return;
    responder.emplace(std::move(at->second));
    questions_.erase(at);
  }
  responder->fail({ErrorCode::kUnavailable, "a question about an object has no answer",
                   "the link on which it came broke", "ask again"});
}

void Objects::check(const OwnerTable::Check& what) {
  {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = checked_.emplace(what.process, what.unheard);
    at->second = at->second || what.unheard;
    if (!is_new) return;
  }
  check_again(what.process);
}

std::vector<ObjectName> Objects::copies_of(const OwnerTable::IsDown& is_owner) const {
  std::vector<ObjectName> names;
  for (const auto& [name, fetch] : here_) {
    if (is_owner(name.owner)) names.push_back(name);
  }
  for (const auto& name : let_go_) {
    if (is_owner(name.owner) && !here_.contains(name)) names.push_back(name);
  }
  return names;
}

void Objects::check_again(ProcessAddress process) {
  gate_.later(kSaysAgain, [weak = weak_from_this(), process] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    std::vector<OwnerTable::Making> making;
    {
      const std::lock_guard lock(self->mutex_);
      if (self->closed_) return;
      making = self->owned_.makes(process);
      const auto is_it = [process](ProcessAddress p) { return p == process; };
      const bool is_known = self->owned_.knows(process) || !self->copies_of(is_it).empty();
      const bool is_over = !is_known || (making.empty() && !self->checked_[process]);
      if (is_over) self->checked_.erase(process);
      if (is_over) return;
    }
    MakingTell question;
    for (const auto& one : making) question.numbers.push_back(one.number);
    const auto said = self->ask(process, kStillMakes, wire::encode(question));
    said->on_ready([weak, said, process, making = std::move(making)] {
      if (const auto here = weak.lock()) here->checked(process, making, said->outcome());
    });
  });
}

void Objects::checked(ProcessAddress process, const std::vector<OwnerTable::Making>& making,
                      const Outcome& outcome) {
  if (link_broke(outcome)) return check_again(process);
  bool again = false;
  OwnerTable::Actions actions;
  {
    const std::lock_guard lock(mutex_);
    const auto said = outcome.ok() ? wire::decode<MakingTell>(*outcome) : Result<MakingTell>(outcome.error());
    std::set<std::uint64_t> not_made;
    if (said) not_made.insert(said->numbers.begin(), said->numbers.end());
    for (const auto& one : making) {
      if (not_made.contains(one.number)) owned_.copied(one, process, false, actions);
    }
    // What it was told to make meanwhile it may have taken for lost with the link, too.
    const auto now = owned_.makes(process);
    again = outcome.ok() && std::any_of(now.begin(), now.end(), [&](const auto& one) {
              return std::find(making.begin(), making.end(), one) == making.end();
            });
    if (!again) checked_.erase(process);
  }
  carry_out(std::move(actions));
  if (again) return check_again(process);
  if (!outcome.ok() && outcome.error().code == ErrorCode::kActorDied)
    process_down(process, outcome.error().why);
}

MakingTell Objects::not_made(ProcessAddress owner, const MakingTell& asked) const {
  MakingTell answer;
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t number : asked.numbers) {
    if (!making_.contains({owner, number})) answer.numbers.push_back(number);
  }
  return answer;
}

void Objects::give_part(const PartAsk& part, Responder responder) {
  FetchPtr value;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = values_.find(part.number); at != values_.end()) value = at->second.value;
  }
  if (value == nullptr || value->done.ready()) return responder.outcome(read_part(part));
  on_disk([part, later = std::make_shared<Responder>(std::move(responder))](Objects& self,
                                                                            const ErrorInfo* why_not) {
    later->outcome(why_not != nullptr ? Outcome(*why_not) : self.read_part(part));
  });
}

/// From memory; of an object that is on disk, in the disk's thread, from there.
Outcome Objects::read_part(const PartAsk& part) {
  FetchPtr value;
  std::optional<SpillFiles::Place> place;
  std::uint64_t size = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = values_.find(part.number); at != values_.end()) {
      value = at->second.value;
      size = at->second.bytes;
      if (!value->done.ready()) place = at->second.place;
    }
  }
  if (value == nullptr || (!value->done.ready() && !place)) return freed(own_name(part.number));
  if (part.offset > size || part.bytes > size - part.offset || part.bytes > limits_.part_bytes)
    return refused_question();
  if (!place) {
    if (!value->done.outcome().ok()) return value->done.outcome().error();
    const auto bytes = value->bytes->view().subspan(part.offset, part.bytes);
    return wire::Bytes(bytes.begin(), bytes.end());
  }
  wire::Bytes all;
  wire::Bytes piece;
  while (all.size() < part.bytes) {
    const auto read = files_.read(*place, part.offset + all.size(), piece);
    if (!read) return lost(own_name(part.number), read.error().message());
    const auto more = read->first(std::min<std::size_t>(read->size(), part.bytes - all.size()));
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

void Objects::asked(ProcessAddress from, std::uint64_t operation, const wire::Bytes& body,
                    Responder responder) {
  OwnerTable::Actions actions;
  if (operation == kLocate) {
    const auto ask = wire::decode<LocateAsk>(body);
    if (!ask) return responder.fail(refused_question());
    if (own_name(ask->number).is_computed()) return locate_computed(*ask, std::move(responder));
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t ticket = ++last_ticket_;
      questions_.emplace(ticket, std::move(responder));
      owned_.locate(ask->number, from, ask->again, ticket, actions);
    }
    return carry_out(std::move(actions));
  }
  if (operation == kPart) {
    const auto ask = wire::decode<PartAsk>(body);
    if (!ask) return responder.fail(refused_question());
    return give_part(*ask, std::move(responder));
  } else if (operation == kKeep) {
    const auto name = wire::decode<ObjectName>(body);
    if (!name) return responder.fail(refused_question());
    return keep_for(*name, from, std::move(responder));
  } else if (operation == kStillMakes) {
    const auto ask = wire::decode<MakingTell>(body);
    if (!ask) return responder.fail(refused_question());
    return responder.answer(wire::encode(not_made(from, *ask)));
  } else if (operation == kDirectAddress) {
    return responder.answer(wire::encode(direct_address()));
  } else if (operation == kMakeRoom) {
    const auto ask = wire::decode<RoomAsk>(body);
    if (!ask) return responder.fail(refused_question());
    return give_room(ask->bytes, std::move(responder));
  } else if (operation == kCopied) {
    const auto told = wire::decode<CopiedTell>(body);
    if (!told) return responder.fail(refused_question());
    const std::lock_guard lock(mutex_);
    owned_.copied({told->number, told->ticket}, from, told->ok, actions);
  } else {
    const auto told = wire::decode<NumberTell>(body);
    if (!told) return responder.fail(refused_question());
    if (operation == kAnswerHeld) return when_held(from, told->number, std::move(responder));
    if (operation == kFreed) {
      forget({from, told->number});
    } else if (operation == kAddBorrower) {
      HandlePtr taken;  // goes without the lock
      const std::lock_guard lock(mutex_);
      if (!owned_.borrow(told->number, from)) responder.fail(freed(own_name(told->number)));
      taken = offers_.take(told->number, from);
    } else if (operation == kGiveBack) {
      HandlePtr unheld;  // the same; what said that it holds it was lost
      const std::lock_guard lock(mutex_);
      if (!owned_.give_back(told->number, from, actions)) unheld = offers_.take(told->number, from);
    } else {
      return responder.fail(refused_question());
    }
  }
  responder.answer({});
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
  gate_.later(kSaysAgain, [weak = weak_from_this(), take] {
    if (const auto self = weak.lock()) take(*self, BorrowTable::Said::kAgain);
  });
}

// Deaths.

void Objects::owners_down(const OwnerTable::IsDown& is_down, const std::string& reason) {
  std::vector<ObjectName> theirs;
  OwnerTable::Actions actions;
  withdraw(is_down);
  {
    const std::lock_guard lock(mutex_);
    if (direct_ != nullptr) direct_->abort(is_down, reason);
    direct_owners_.forget(is_down);
    theirs = copies_of(is_down);
    owned_.readers_down(is_down, actions);
  }
  if (!theirs.empty()) log(LogLevel::kDebug, std::to_string(theirs.size()) + " objects are lost: " + reason);
  for (const auto& name : theirs) forget(name);
  carry_out(std::move(actions));
  gate_.later(kDeadBorrowerGrace, [weak = weak_from_this(), is_down] {
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
  const auto is_down = [process](ProcessAddress p) { return p == process; };
  owners_down(is_down, reason);
  lose_those_at(is_down, "its process is gone: " + reason);
}

void Objects::node_down(NodeId node, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    dead_nodes_.remember(node, reason);
  }
  const auto is_down = [node](ProcessAddress p) { return p.node == node; };
  owners_down(is_down, reason);
  lose_those_at(is_down, "that node is gone: " + reason);
}

Objects::Counts Objects::counts() const {
  const std::lock_guard lock(mutex_);
  return {owned_.size(),     borrowed_.size(),  here_.size(),  offers_.size(),
          questions_.size(), spills_.on_disk(), direct_copies_};
}

}  // namespace troupe::objects
