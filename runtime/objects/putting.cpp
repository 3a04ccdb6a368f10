// How a process makes objects, and the memory in which they lie.
#include <algorithm>

#include "runtime/host/may_wait.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"

namespace troupe::objects {
namespace {

constexpr Duration kStoreAnswers = std::chrono::seconds(30);
/// While others are written to disk for it.
constexpr Duration kRoomIsMade = std::chrono::minutes(10);
/// Who waits for room looks so often for what other processes have let go, which is not heard of here.
constexpr Duration kLooksAgain = std::chrono::milliseconds(100);
/// Memory that no object took for so long is given back.
constexpr Duration kIdle = std::chrono::seconds(10);
/// A process keeps this part of its node's store for its next objects.
constexpr std::uint64_t kPartKept = 8;

std::string cannot_put(std::uint64_t bytes) {
  return "cannot put an object of " + std::to_string(bytes) + " bytes";
}

}  // namespace

std::uint64_t Objects::next_number() {
  const std::lock_guard lock(mutex_);
  return ++last_number_;
}

HandlePtr Objects::own(std::uint64_t number, BytesPtr bytes, SegmentPtr segment) {
  auto value = std::make_shared<Fetch>(waiter_);
  const std::size_t size = bytes->view().size();
  value->bytes = std::move(bytes);
  value->done.resolve(wire::Bytes{});
  const bool shared = segment != nullptr;
  const std::lock_guard lock(mutex_);
  if (!shared && owned_.inline_bytes() + size > kMostInlineBytes) {
    throw LimitExceeded(
        {ErrorCode::kLimit, cannot_put(size),
         "the objects in this process's own memory (small ones, and those of light actors) take " +
             std::to_string(owned_.inline_bytes()) + " bytes, and " + std::to_string(kMostInlineBytes) +
             " is the limit",
         "drop references that are not needed any more"});
  }
  owned_.add(number, size, shared, !shared && size > kInlineBytes);
  if (shared) spills_.add(number, segment->capacity() + kTagBytes);
  values_.emplace(number, Own{std::move(value), std::move(segment), size, std::nullopt});
  return std::make_shared<Handle>(weak_from_this(), own_name(number));
}

HandlePtr Objects::put(wire::Bytes&& bytes) {
  if (bytes.size() > kInlineBytes && thread_may_wait()) return put(wire::ByteView(bytes));
  return own(next_number(), std::make_shared<ObjectBytes>(std::move(bytes)), nullptr);
}

HandlePtr Objects::put(wire::ByteView bytes, Duration for_room, std::uint64_t of_call) {
  if (bytes.size() <= kInlineBytes || !thread_may_wait())  // shared memory has to be waited for
    return own(next_number(), std::make_shared<ObjectBytes>(wire::Bytes(bytes.begin(), bytes.end())),
               nullptr);
  return put_shared(bytes.size(), source_of(bytes), for_room, of_call);
}

HandlePtr Objects::put_answer(wire::ByteView head, wire::ByteView rest, bool waits) {
  const std::uint64_t bytes = head.size() + rest.size();
  const Source both = [head, rest](std::uint64_t offset) -> Result<wire::ByteView> {
    return offset < head.size() ? head.subspan(offset) : rest.subspan(offset - head.size());
  };
  if (waits) return put_shared(bytes, both, Duration::zero(), 0);
  const std::uint64_t number = next_number();
  std::uint64_t full_of = 0;
  auto placed = place(number, bytes, both, full_of, Full::kSpills);
  return full_of != 0 ? nullptr : own_placed(number, bytes, std::move(placed));
}

HandlePtr Objects::put_shared(std::uint64_t bytes, const Source& from, Duration for_room,
                              std::uint64_t of_call) {
  const std::uint64_t number = next_number();
  return own_placed(number, bytes, place_in_time(number, bytes, from, for_room, of_call));
}

HandlePtr Objects::own_placed(std::uint64_t number, std::uint64_t bytes, Result<Placed> placed) {
  if (!placed) {
    ErrorInfo why = placed.error();
    why.why = why.what + ": " + why.why;
    why.what = cannot_put(bytes);
    throw_error(std::move(why));
  }
  return own(number, std::move(placed->bytes), std::move(placed->segment));
}

/// In a thread that may wait.
Result<Objects::Lent> Objects::lend(const Ask& ask, std::uint64_t bytes, Full full, const std::string& key) {
  const auto state = std::make_shared<CallState>(waiter_);
  const auto lent = std::make_shared<Lent>();
  const bool room = full != Full::kSaysSo;
  const auto then = [weak = weak_from_this(), state, lent, key, room](Result<Lent> got) {
    if (got) *lent = std::move(*got);
    const bool in_time = state->resolve(got ? Outcome(wire::Bytes{}) : Outcome(got.error()));
    if (in_time || !room || !got || key.empty()) return;
    if (const auto self = weak.lock()) self->gate_.drop_region(key);  // it is new, and nobody will use it
  };
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return process_ends();
    borrowings_.insert(state);
  }
  const int round = full == Full::kSpills ? kMostRounds - 1 : 0;
  room ? obtain(ask, bytes, then, round) : ask(then);
  const bool answered = state->wait(room ? kRoomIsMade : kStoreAnswers);
  {
    const std::lock_guard lock(mutex_);
    borrowings_.erase(state);
  }
  if (!answered) {
    state->resolve(
        ErrorInfo{ErrorCode::kTimeout, "no shared memory",
                  room ? "no room was made within 10 minutes" : "the node did not answer within 30 s",
                  room ? "see whether its disk is stuck" : "see whether it is stuck"});
  }
  if (!state->outcome().ok()) return state->outcome().error();
  const std::lock_guard lock(mutex_);
  kept_limit_ = lent->answer.store_bytes / kPartKept;
  return std::move(*lent);
}

/// Writes the object into kept memory. Nothing: there is none that nobody reads.
std::optional<Result<Objects::Placed>> Objects::place_again(std::uint64_t number, std::uint64_t bytes,
                                                            const Source& from) {
  std::vector<SegmentPtr> read;  // views of what lay there live
  std::optional<Result<Placed>> placed;
  while (!placed) {
    SegmentPtr segment;
    {
      const std::lock_guard lock(mutex_);
      segment = pool_.take(bytes);
    }
    if (segment == nullptr) break;
    const std::string key = own_region(gate_.address(), segment->region());
    auto lent = lend(key, segment->capacity() + kTagBytes, Full::kSaysSo);
    if (!lent || lent->answer.full || !is_sealed(lent->fd)) {  // the node has dropped it, or is gone
      gate_.drop_region(key);
      continue;
    }
    const auto wrote = segment->write_again(lent->fd, number, bytes, from);
    if (wrote && !*wrote) {
      read.push_back(std::move(segment));
      continue;
    }
    auto mapped = wrote ? read_segment(lent->fd, number, bytes) : Result<BytesPtr>(wrote.error());
    if (!mapped) {
      gate_.drop_region(key);
      placed = mapped.error();
    } else {
      placed = Placed{*std::move(mapped), std::move(segment)};
    }
  }
  retire(std::move(read));
  return placed;
}

/// In a thread that may wait.
Result<Objects::Placed> Objects::place(std::uint64_t number, std::uint64_t bytes, const Source& from,
                                       std::uint64_t& full_of, Full full) {
  if (auto placed = place_again(number, bytes, from)) return *std::move(placed);
  const std::string key = own_region(gate_.address(), number);
  auto lent = lend(key, bytes + kTagBytes, full);
  if (!lent) return lent.error();
  if (lent->answer.full) {
    full_of = lent->answer.store_bytes;
    return lent->answer.why;
  }
  auto segment = Segment::write(number, lent->fd, number, bytes, from);
  auto mapped = segment ? read_segment(lent->fd, number, bytes) : Result<BytesPtr>(segment.error());
  if (!mapped) {
    gate_.drop_region(key);
    return mapped.error();
  }
  return Placed{*std::move(mapped), *std::move(segment)};
}

// Large arguments.

class Objects::Argument {
 public:
  Argument(std::weak_ptr<Objects> objects, HandlePtr object, std::uint64_t bytes)
      : objects_(std::move(objects)), object_(std::move(object)), bytes_(bytes) {}
  ~Argument() {
    object_ = nullptr;  // who is told that this goes finds its room free
    const auto objects = objects_.lock();
    if (objects == nullptr) return;
    {
      const std::lock_guard lock(objects->mutex_);
      objects->argument_bytes_ -= bytes_;
      ++objects->arguments_gone_;
    }
    objects->argument_gone_.notify_all();
  }
  Argument(const Argument&) = delete;
  Argument& operator=(const Argument&) = delete;

 private:
  const std::weak_ptr<Objects> objects_;
  HandlePtr object_;
  const std::uint64_t bytes_;
};

HandlePtr Objects::argument(HandlePtr object) {
  const Handle* handle = object.get();
  std::uint64_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = values_.find(handle->name().number); at != values_.end()) bytes = at->second.bytes;
    argument_bytes_ += bytes;
  }
  const auto made = std::make_shared<const Argument>(weak_from_this(), std::move(object), bytes);
  return HandlePtr(made, handle);
}

/// Until more arguments have gone than `seen`, or for a moment. False: nothing is left that could go, or
/// `until` has passed. `may_fit`: beside what this process keeps in use itself.
bool Objects::wait_for_room(std::uint64_t seen, std::uint64_t of_call, bool may_fit, Instant until) {
  const Instant now = MonotonicClock().now();
  std::unique_lock lock(mutex_);
  if (closed_ || now >= until) return false;
  if (arguments_gone_ != seen) return true;
  if (argument_bytes_ <= of_call && !may_fit) return false;
  argument_gone_.wait_for(lock, std::min<Duration>(until - now, kLooksAgain));
  return !closed_;
}

/// Bytes of the store that its own objects take which are in use here.
std::uint64_t Objects::looked_at_here() const {
  std::uint64_t bytes = 0;
  const std::lock_guard lock(mutex_);
  for (const auto& [number, own] : values_) {
    const bool is_used = own.value.use_count() > 1 || own.value->bytes.use_count() > 1;
    if (own.segment != nullptr && is_used) bytes += own.segment->capacity() + kTagBytes;
  }
  return bytes;
}

/// In a thread that may wait.
Result<Objects::Placed> Objects::place_in_time(std::uint64_t number, std::uint64_t bytes, const Source& from,
                                               Duration for_room, std::uint64_t of_call) {
  const Instant until = MonotonicClock().now() + for_room;
  for (;;) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      seen = arguments_gone_;
    }
    std::uint64_t full_of = 0;
    auto placed = place(number, bytes, from, full_of, Full::kMakesRoom);
    if (full_of == 0) return placed;
    if (bytes + of_call > full_of)
      return ErrorInfo{
          ErrorCode::kLimit, "no shared memory",
          "with the " + std::to_string(of_call) +
              " bytes of the same call's other arguments that is more than the node's limit of " +
              std::to_string(full_of) + " bytes",
          "give less to one call, or set TROUPE_REGIONS_BYTES"};
    const bool may_fit = bytes + of_call + looked_at_here() <= full_of;
    if (!wait_for_room(seen, of_call, may_fit, until)) return placed;
  }
}

// Memory of objects that have gone.

void Objects::retire(std::vector<SegmentPtr> segments) {
  if (segments.empty()) return;
  std::vector<SegmentPtr> over;
  bool sweeps = true;
  {
    const std::lock_guard lock(mutex_);
    const Instant now = MonotonicClock().now();
    for (auto& segment : segments) {
      if (!closed_) pool_.keep(std::move(segment), kept_limit_, now, over);
    }
    if (pool_.size() > 0 && !closed_) sweeps = std::exchange(sweeps_, true);
  }
  give_back(std::move(over));
  if (!sweeps) sweep_later();
}

std::vector<SegmentPtr> Objects::all_kept() {
  const std::lock_guard lock(mutex_);
  return pool_.since(Instant::max());
}

void Objects::give_back(std::vector<SegmentPtr> segments) {
  for (const auto& segment : segments) gate_.drop_region(own_region(gate_.address(), segment->region()));
}

void Objects::sweep_later() {
  gate_.later(kIdle, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    std::vector<SegmentPtr> idle;
    bool more = false;
    {
      const std::lock_guard lock(self->mutex_);
      if (self->closed_) return;
      idle = self->pool_.since(MonotonicClock().now() - kIdle);
      more = self->sweeps_ = self->pool_.size() > 0;
    }
    self->give_back(std::move(idle));
    if (more) self->sweep_later();
  });
}

}  // namespace troupe::objects
