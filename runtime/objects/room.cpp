// Room in a full store: kept memory is given back, copies that nobody reads go, then objects leave for disk.
#include <utility>

#include "runtime/core/log.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"

namespace troupe::objects {
namespace {

/// Whoever dies with them mapped reads objects until the kernel has taken its memory down, after its death is
/// known; who is asked to let go may be at it.
constexpr Duration kReadersLetGo = std::chrono::milliseconds(100);
/// Another process writes objects to disk meanwhile; one that is stopped never answers.
constexpr Duration kOtherMakesRoom = std::chrono::minutes(2);

}  // namespace

void Objects::on_disk(OnDisk work) {
  ErrorInfo why_not = process_ends();
  try {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      if (disk_ == nullptr) disk_ = std::make_unique<WorkThread>();
      to_do_.push_back(std::move(work));
      return disk_->post([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->do_next();
      });
    }
  } catch (const Error& error) {  // this may be a thread that receives, in which nobody catches it
    log(LogLevel::kWarning, std::string("no thread for objects on disk: ") + error.what());
    why_not = error.info();
  }
  work(*this, &why_not);
}

void Objects::do_next() {
  OnDisk work;
  bool is_over = false;
  {
    const std::lock_guard lock(mutex_);
    work = std::move(to_do_.front());
    to_do_.pop_front();
    is_over = closed_;
  }
  const ErrorInfo why_not = process_ends();
  work(*this, is_over ? &why_not : nullptr);
}

void Objects::end_threads() {
  std::unique_ptr<WorkThread> disk;
  std::unique_ptr<DirectConnections> direct;
  {
    const std::lock_guard lock(mutex_);
    disk.swap(disk_);
    direct.swap(direct_);
  }
  direct.reset();
  disk.reset();
  std::deque<OnDisk> not_done;
  std::set<std::shared_ptr<OnRegion>> no_room;
  {
    const std::lock_guard lock(mutex_);
    not_done.swap(to_do_);
    no_room.swap(waiting_for_readers_);
  }
  const ErrorInfo over = process_ends();
  for (const auto& work : not_done) work(*this, &over);
  for (const auto& then : no_room) (*then)(over);
}

// Asking for room.

/// `ask` is called while this lives alone.
void Objects::obtain(const Ask& ask, std::uint64_t bytes, OnRegion then, int round) {
  ask([weak = weak_from_this(), ask, bytes, then, round](Result<Lent> lent) {
    const auto self = weak.lock();
    if (self == nullptr || !lent || !lent->answer.full || round >= kMostRounds) return then(std::move(lent));
    self->on_disk([ask, bytes, then, round, answer = lent->answer](Objects& here, const ErrorInfo* why_not) {
      if (why_not != nullptr) return then(*why_not);
      const auto made = [ask, bytes, then, round, answer](Objects& us, Room room) {
        // The first round's letting go lets the second one spill.
        if (room.freed > 0 || round == 0) return us.obtain(ask, bytes, then, round + 1);
        if (room.is_read && room.why_not_more.empty() && round + 1 < kMostRounds)
          return us.obtain_later(ask, bytes, then, round + 1);
        Lent none{{}, answer};
        none.answer.why.why += room.why_not_more.empty() ? "; all that is there is in use" + us.what_stays()
                                                         : "; no room could be made: " + room.why_not_more;
        then(std::move(none));
      };
      here.ask_others(answer.holders, bytes, here.make_room(bytes), made);
    });
  });
}

void Objects::obtain_later(const Ask& ask, std::uint64_t bytes, const OnRegion& then, int round) {
  const auto told = std::make_shared<OnRegion>(then);
  bool is_over = false;
  {
    const std::lock_guard lock(mutex_);
    is_over = closed_;
    if (!is_over) waiting_for_readers_.insert(told);
  }
  if (is_over) return then(process_ends());
  gate_.later(kReadersLetGo, [weak = weak_from_this(), ask, bytes, told, round] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      const std::lock_guard lock(self->mutex_);
      if (self->waiting_for_readers_.erase(told) == 0) return;  // it was told that the process ends
    }
    self->obtain(ask, bytes, std::move(*told), round);
  });
}

/// " (of this process's objects 3 are looked at here, ...)"; empty: it has none there.
std::string Objects::what_stays() const {
  std::size_t looked_at = 0, moving = 0, others = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, own] : values_) {
      if (own.bytes <= kInlineBytes) continue;
      if (own.segment == nullptr) {
        if (!own.value->done.ready() && own.value.use_count() > 1) ++moving;
      } else if (own.value.use_count() > 1 || own.value->bytes.use_count() > 1) {
        ++looked_at;
      } else {
        ++others;
      }
    }
  }
  if (looked_at + others + moving == 0) return "";
  return " (of this process's objects " + std::to_string(looked_at) + " are looked at here, " +
         std::to_string(others) + " are read elsewhere, " + std::to_string(moving) +
         " are awaited from disk)";
}

/// One after another, until there is enough.
void Objects::ask_others(std::vector<ProcessId> holders, std::uint64_t bytes, Room room,
                         std::function<void(Objects&, Room)> then) {
  std::erase(holders, gate_.address().process);
  if (holders.empty() || room.freed >= bytes) return then(*this, std::move(room));
  const ProcessAddress next{gate_.address().node, holders.front()};
  holders.erase(holders.begin());
  const auto said = ask(next, kMakeRoom, wire::encode(RoomAsk{bytes - room.freed}));
  said->on_ready([weak = weak_from_this(), said, holders = std::move(holders), bytes, room = std::move(room),
                  then = std::move(then)]() mutable {
    const auto self = weak.lock();
    if (self == nullptr) return;
    if (!said->outcome().ok() && said->outcome().error().code == ErrorCode::kTimeout) {
      if (room.why_not_more.empty()) room.why_not_more = said->outcome().error().message();
    } else if (said->outcome().ok()) {
      if (const auto more = wire::decode<RoomAnswer>(*said->outcome())) {
        room.freed += more->freed;
        room.is_read = room.is_read || more->is_read;
        if (room.why_not_more.empty()) room.why_not_more = more->why_not_more;
      }
    }
    self->ask_others(std::move(holders), bytes, std::move(room), std::move(then));
  });
  gate_.later(kOtherMakesRoom, [weak = std::weak_ptr(said)] {
    if (const auto late = weak.lock())
      late->cancel({ErrorCode::kTimeout, "another process of this node makes no room",
                    "it did not answer within 2 minutes", "see whether it is stopped, or its disk stuck"});
  });
}

void Objects::give_room(std::uint64_t bytes, Responder responder) {
  on_disk([bytes, later = std::make_shared<Responder>(std::move(responder))](Objects& self,
                                                                             const ErrorInfo* why_not) {
    if (why_not != nullptr) return later->fail(*why_not);
    const Room room = self.make_room(bytes);
    // The node answers in order: once it has refused this, it has heard of the room.
    self.ask_region_(own_region(self.gate_.address(), 0), 0, [later, room](const Result<Lent>&) {
      later->answer(wire::encode(RoomAnswer{room.freed, room.why_not_more, room.is_read}));
    });
  });
}

// Making it, in the disk's thread.

Objects::Room Objects::make_room(std::uint64_t wanted) {
  Room room;
  auto kept = all_kept();
  for (const auto& segment : kept) room.freed += segment->capacity();
  give_back(std::move(kept));
  room.freed += let_go();
  std::set<std::uint64_t> stuck;
  while (room.freed < wanted && room.why_not_more.empty()) {
    auto leaving = choose(wanted - room.freed, stuck);
    if (leaving.empty()) break;
    for (auto& one : leaving) {
      // Nobody will read what is written now.
      if (room.why_not_more.empty() && is_closed()) room.why_not_more = process_ends().why;
      const auto spilled = room.why_not_more.empty() ? spill(one) : Result<void>();
      if (!spilled) room.why_not_more = spilled.error().message();
      if (!room.why_not_more.empty() || one.is_read) {
        stuck.insert(one.spill.number);
        room.is_read = room.is_read || one.is_read;
        stay(one);
      } else {
        room.freed += one.spill.bytes;
        left(one);
      }
    }
  }
  return room;
}

/// Of others' objects, those that nobody here looks at: their memory is unmapped; a copy goes when no other
/// process of the node reads it.
std::uint64_t Objects::let_go() {
  std::vector<std::pair<ObjectName, FetchPtr>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = here_.begin(); at != here_.end();) {
      const FetchPtr& fetch = at->second;
      const bool idle = fetch.use_count() == 1 && fetch->done.ready() && fetch->bytes.use_count() == 1;
      if (idle && fetch->bytes->view().size() > kInlineBytes) {
        if (fetch->is_copy) let_go_.insert(at->first);  // forgotten with its owner from now on, too
        gone.emplace_back(at->first, std::move(at->second));
        at = here_.erase(at);
      } else {
        ++at;
      }
    }
  }
  std::uint64_t freed = 0;
  for (auto& [name, fetch] : gone) {
    const std::uint64_t bytes = fetch->bytes->view().size();
    const bool is_copied = fetch->is_copy;
    fetch.reset();
    if (!is_copied) continue;
    const auto lent = lend(copy_region(name), bytes + kTagBytes, Full::kSaysSo);
    const bool is_free = lent && !lent->answer.full && is_unread(lent->fd);
    {
      const std::lock_guard lock(mutex_);
      const bool is_forgotten =
          !let_go_.contains(name);  // and its memory dropped, maybe before this opened it
      if (!is_free && !is_forgotten) continue;
      let_go_.erase(name);
    }
    // Else another process has dropped it, and this one is new.
    const bool is_copy = is_free && is_copy_of(lent->fd, name);
    gate_.drop_region(copy_region(name));
    if (is_copy) freed += bytes;
  }
  return freed;
}

/// Takes them out of their values: whoever wants one meanwhile waits for it.
std::vector<Objects::Leaving> Objects::choose(std::uint64_t wanted, const std::set<std::uint64_t>& stuck) {
  std::vector<Leaving> leaving;
  std::vector<FetchPtr> mappings;  // go without the lock
  const std::lock_guard lock(mutex_);
  const auto may_leave = [&](std::uint64_t number) {
    const FetchPtr& value = values_.at(number).value;
    return !stuck.contains(number) && value.use_count() == 1 && value->bytes.use_count() == 1;
  };
  for (const auto& spill : spills_.choose(wanted, may_leave)) {
    Own& own = values_.at(spill.number);
    mappings.push_back(std::exchange(own.value, std::make_shared<Fetch>(waiter_)));
    leaving.push_back({spill, own.bytes, std::move(own.segment), own.place, false});
  }
  return leaving;
}

Result<void> Objects::spill(Leaving& one) {
  const auto lent = lend(own_region(gate_.address(), one.segment->region()), 1, Full::kSaysSo);
  if (!lent) return lent.error();
  one.is_read = !is_unread(lent->fd);  // by another process
  if (one.is_read || one.place) return {};
  auto place = files_.write(one.segment->view(one.bytes));
  if (!place) return place.error();
  one.place = *std::move(place);
  return {};
}

void Objects::left(Leaving& one) {
  bool wanted = false;
  bool freed = false;
  {
    const std::lock_guard lock(mutex_);
    wanted = spills_.left(one.spill.number);
    const auto at = values_.find(one.spill.number);
    freed = at == values_.end();
    if (!freed) at->second.place = one.place;
  }
  if (freed && one.spill.write) files_.drop(*one.place);  // else whoever freed it has
  std::vector<SegmentPtr> segments;
  segments.push_back(std::move(one.segment));
  give_back(std::move(segments));
  if (wanted) restore(one.spill.number);
}

void Objects::stay(Leaving& one) {
  const std::uint64_t number = one.spill.number;
  const auto lent = lend(own_region(gate_.address(), one.segment->region()), 1, Full::kSaysSo);
  auto mapped = lent ? read_segment(lent->fd, number, one.bytes) : Result<BytesPtr>(lent.error());
  if (!mapped) {  // its bytes are there all the same
    const wire::ByteView bytes = one.segment->view(one.bytes);
    mapped = BytesPtr(std::make_shared<ObjectBytes>(wire::Bytes(bytes.begin(), bytes.end())));
  }
  FetchPtr value;
  {
    const std::lock_guard lock(mutex_);
    spills_.stays(number);
    if (const auto at = values_.find(number); at != values_.end()) {
      value = at->second.value;
      at->second.segment = std::move(one.segment);
      value->bytes = *mapped;
    }
  }
  if (value == nullptr) {
    std::vector<SegmentPtr> segments;
    segments.push_back(std::move(one.segment));
    return retire(std::move(segments));
  }
  value->done.resolve(wire::Bytes{});
}

// And back.

void Objects::restore(std::uint64_t number) {
  std::uint64_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto at = values_.find(number);
    if (at == values_.end()) return;
    bytes = at->second.bytes;
  }
  const std::uint64_t region = next_number();
  obtain(ask_for(own_region(gate_.address(), region), bytes + kTagBytes), bytes + kTagBytes,
         [weak = weak_from_this(), number, region](Result<Lent> lent) {
           const auto self = weak.lock();
           if (self == nullptr) return;
           const auto got = std::make_shared<Result<Lent>>(std::move(lent));
           self->on_disk([number, region, got](Objects& here, const ErrorInfo* why_not) {
             here.restored(number, region, why_not != nullptr ? *why_not : std::move(*got));
           });
         });
}

/// Into memory of this process, for those that wait for it now: a full store whose disk is full, too, has no
/// room for it, and it is there all the same.
Result<Objects::BytesPtr> Objects::read_beside(const SpillFiles::Place& place) const {
  wire::Bytes all, part;
  all.reserve(place.bytes);
  while (all.size() < place.bytes) {
    const auto read = files_.read(place, all.size(), part);
    if (!read) return read.error();
    all.insert(all.end(), read->begin(), read->end());
  }
  return BytesPtr(std::make_shared<ObjectBytes>(std::move(all)));
}

void Objects::restored(std::uint64_t number, std::uint64_t region, Result<Lent> lent) {
  std::optional<SpillFiles::Place> place;
  bool is_node_gone = false;  // it lends no memory, and the file is this process's
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = values_.find(number); at != values_.end()) place = at->second.place;
    is_node_gone = closed_ && !why_closed_.empty();
  }
  if (lent && lent->answer.full) lent = lent->answer.why;
  Result<Placed> placed = lent ? freed(own_name(number)) : lent.error();
  if (lent && place) {
    wire::Bytes part;
    const Source from = [&](std::uint64_t offset) { return files_.read(*place, offset, part); };
    auto segment = Segment::write(region, lent->fd, number, place->bytes, from);
    auto mapped = segment ? read_segment(lent->fd, number, place->bytes) : Result<BytesPtr>(segment.error());
    if (mapped) {
      placed = Placed{*std::move(mapped), *std::move(segment)};
    } else {
      placed = lost(own_name(number), mapped.error().message());
    }
  }
  const bool ok = placed.ok();
  BytesPtr beside;  // where there is no room for it
  if (!ok && place && (is_node_gone || placed.error().code == ErrorCode::kLimit)) {
    if (auto read = read_beside(*place)) {
      beside = *std::move(read);
    } else {
      placed = lost(own_name(number), read.error().message());
    }
  }
  FetchPtr value;
  {
    const std::lock_guard lock(mutex_);
    ok ? spills_.came(number, placed->segment->capacity() + kTagBytes) : spills_.did_not_come(number);
    if (const auto at = values_.find(number); at != values_.end()) {
      value = at->second.value;
      if (ok) {
        at->second.segment = std::move(placed->segment);
        value->bytes = std::move(placed->bytes);
      } else {
        at->second.value = std::make_shared<Fetch>(waiter_);  // for who asks again
        value->bytes = beside;
        value->why_beside = placed.error();
      }
    }
  }
  if (lent && (!ok || value == nullptr)) gate_.drop_region(own_region(gate_.address(), region));
  if (value != nullptr)
    value->done.resolve(ok || beside != nullptr ? Outcome(wire::Bytes{}) : Outcome(placed.error()));
}

}  // namespace troupe::objects
