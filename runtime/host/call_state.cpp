#include "runtime/host/call_state.hpp"

#include <algorithm>
#include <climits>
#include <exception>
#include <iterator>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "runtime/core/futex.hpp"
#include "runtime/host/callbacks.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/host/this_thread.hpp"

namespace troupe {
namespace {

/// A task that waits looks so often whether there is something that it can do.
constexpr Duration kLooksAgain = std::chrono::seconds(1);

/// Of what an answer waits for, so much is looked at: a program may build its answers each on the one before.
constexpr std::size_t kMostLookedAt = 1000;

/// One more, for a scope.
class Counted {
 public:
  explicit Counted(std::atomic<std::uint32_t>& in) : in_(in) { in_.fetch_add(1, std::memory_order_seq_cst); }
  ~Counted() { in_.fetch_sub(1, std::memory_order_relaxed); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<std::uint32_t>& in_;
};

/// A wait in which the thread has a helper.
struct Helped {
  explicit Helped(Helper& helper) : by(helper) {}
  ~Helped() { by.goes_on(); }
  Helped(const Helped&) = delete;
  Helped& operator=(const Helped&) = delete;
  Helper& by;
};

}  // namespace

void run_in_turn(std::vector<std::function<void()>> callbacks) {
  using Callbacks = std::vector<std::function<void()>>;
  if (callbacks.empty()) return;
  Callbacks*& waiting = this_thread.callbacks;
  if (waiting != nullptr) {
    std::move(callbacks.begin(), callbacks.end(), std::back_inserter(*waiting));
    return;
  }
  Callbacks next;
  std::exception_ptr thrown;
  waiting = &next;
  const NoWaitScope no_wait;  // what one waits for may be brought by a callback that waits for its turn
  while (!callbacks.empty()) {
    for (auto& callback : callbacks) {
      try {
        callback();
      } catch (...) {
        if (!thrown) thrown = std::current_exception();
      }
      callback = nullptr;  // it may hold the last copy of a Promise
    }
    callbacks = std::exchange(next, {});
  }
  waiting = nullptr;
  if (thrown) std::rethrow_exception(thrown);
}

bool CallState::resolve(Outcome outcome, wire::Kept refers_to) {
  return fill(std::move(outcome), nullptr, std::move(refers_to));
}

bool CallState::resolve_stored(Load load, wire::Kept refers_to) {
  return fill(wire::Bytes{}, std::move(load), std::move(refers_to));
}

bool CallState::resolve_as(CallState& other) {
  TROUPE_ASSERT(other.ready(), "an answer moves once it is there");
  if (other.stored_ == nullptr) return resolve(other.outcome(), other.refers_to());
  Load load;
  {
    const std::lock_guard lock(other.mutex_);
    load = std::exchange(other.stored_->load, nullptr);
  }
  TROUPE_ASSERT(load != nullptr, "an answer that moves is read by nobody else");
  return resolve_stored(std::move(load), other.refers_to());
}

bool CallState::fill(Outcome outcome, Load load, wire::Kept refers_to, bool goes_on) {
  const bool is_stored = load != nullptr;
  std::vector<std::function<void()>> readers;  // of a stored one
  std::vector<std::function<void()>> callbacks;
  decltype(kept_) kept;  // goes at the end, without the lock
  {
    const std::lock_guard lock(mutex_);
    if (!goes_on) kept = std::move(kept_);
    if (ready()) return false;
    outcome_ = std::move(outcome);
    name_in_failure();
    if (is_stored) stored_ = std::make_unique<Stored>(Stored{std::move(load), nullptr});
    parts_.reset();
    if (!refers_to.empty()) refers_to_ = std::make_unique<wire::Kept>(std::move(refers_to));
    ready_.store(is_stored ? kStored : kHere, std::memory_order_seq_cst);
    (is_stored ? readers : callbacks).swap(callbacks_);
    if (watchers_ != nullptr) {
      for (auto& [owner, callback] : *watchers_) callbacks.push_back(std::move(callback));
      watchers_.reset();
    }
  }
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(ready_, INT_MAX);
  if (waiter_ != nullptr) waiter_->nudge();
  run_in_turn(std::move(callbacks));
  for (auto& reader : readers) on_ready(std::move(reader));
  return true;
}

/// Null: it is not stored, or nobody has read it yet.
std::shared_ptr<CallState> CallState::loaded() const {
  if (ready_.load(std::memory_order_acquire) != kStored) return nullptr;
  const std::lock_guard lock(mutex_);
  return stored_->here;
}

std::shared_ptr<CallState> CallState::begin_load() {
  Load load;  // lets go of the stored answer once that is read
  std::shared_ptr<CallState> here;
  {
    const std::lock_guard lock(mutex_);
    if (stored_->here != nullptr) return stored_->here;
    // Without a waiter: that may be gone by then.
    stored_->here = here = std::make_shared<CallState>(nullptr);
    load = std::exchange(stored_->load, nullptr);
  }
  load([here](Outcome outcome) { here->resolve(std::move(outcome)); });
  return here;
}

bool CallState::is_here() const {
  const auto state = ready_.load(std::memory_order_acquire);
  if (state != kStored) return state == kHere;
  const auto here = loaded();
  return here != nullptr && here->ready();
}

bool CallState::load(Duration timeout) {
  TROUPE_ASSERT(ready(), "an answer is loaded once it is there");
  return is_here() || begin_load()->wait(timeout);
}

const Outcome& CallState::outcome() const {
  TROUPE_ASSERT(is_here(), "the outcome is read once it is there");
  const auto here = loaded();
  return here == nullptr ? outcome_ : here->outcome();
}

const ErrorInfo* CallState::failure() const {
  if (!is_here()) return nullptr;
  const Outcome& is = outcome();
  return is.ok() ? nullptr : &is.error();
}

bool CallState::is_awaited() const {
  if (waiting_.load(std::memory_order_seq_cst) != 0) return true;
  std::shared_ptr<CallState> next;
  {
    const std::lock_guard lock(mutex_);
    if (!callbacks_.empty()) return true;
    next = next_.lock();
  }
  return next != nullptr && next->is_awaited();
}

void CallState::passes_on_to(const std::shared_ptr<CallState>& next) {
  const std::lock_guard lock(mutex_);
  next_ = next;
}

std::shared_ptr<CallState> CallState::passes_to() const {
  const std::lock_guard lock(mutex_);
  return next_.lock();
}

wire::Kept CallState::refers_to() const {
  TROUPE_ASSERT(ready(), "the outcome is read once it is there");
  return refers_to_ == nullptr ? wire::Kept() : *refers_to_;
}

void CallState::set_own_call(const ActorContext* by) {
  const std::lock_guard lock(mutex_);
  own_call_of_ = by;
}

void CallState::set_parts(const std::vector<std::shared_ptr<CallState>>& parts, std::size_t count,
                          bool goes_on) {
  std::shared_ptr<CallState> next;
  {
    const std::lock_guard lock(mutex_);
    if (ready()) return;
    if (!goes_on) own_call_of_ = nullptr;
    // Weakly: they may hold this one.
    parts_ = std::make_unique<Parts>(Parts{{parts.begin(), parts.end()}, count});
    next = next_.lock();
  }
  if (next != nullptr) next->set_parts(parts, count, goes_on);
}

/// Nothing: its parts say so.
std::optional<bool> CallState::is_brought_by(const Cause& cause, Parts& parts) const {
  const std::lock_guard lock(mutex_);
  if (ready()) return false;
  if (this == cause.call || (cause.turn != nullptr && own_call_of_ == cause.turn)) return true;
  if (parts_ == nullptr) return false;
  parts = *parts_;
  return std::nullopt;
}

/// Whether nothing else can bring the answer, so far as this process knows. Parts of parts may be many deep,
/// and be in themselves: such a one is waited for as one that others bring, as are those beyond `most`.
bool CallState::needs_cause(const Cause& cause, std::size_t most) const {
  struct Looked {
    const CallState* at;
    Parts parts;
    std::size_t next = 0;    ///< of the parts
    std::size_t others = 0;  ///< of those before it: that others bring
  };
  Looked first{this, {}};
  if (const auto known = is_brought_by(cause, first.parts)) return *known;
  std::vector<Looked> way{std::move(first)};
  std::unordered_map<const CallState*, bool> needs{{this, false}};  // those on the way: false
  std::vector<std::shared_ptr<const CallState>> seen;               // keeps their addresses theirs
  for (;;) {
    Looked& here = way.back();
    if (here.next == here.parts.of.size()) {
      const bool its = needs[here.at] = here.others < here.parts.count;
      way.pop_back();
      if (way.empty()) return its;
      way.back().others += its ? 0 : 1;
      continue;
    }
    const std::shared_ptr<const CallState> part = here.parts.of[here.next++].lock();
    const auto [at, is_new] = needs.try_emplace(part.get(), false);  // null: others bring it
    if (is_new && part != nullptr && seen.size() < most) {
      seen.push_back(part);
      Looked next{part.get(), {}};
      const auto known = part->is_brought_by(cause, next.parts);
      if (!known) {
        way.push_back(std::move(next));
        continue;
      }
      at->second = *known;
    }
    here.others += at->second ? 0 : 1;
  }
}

bool CallState::needs(const CallState& call) const {
  return needs_cause({.call = &call}, kMostLookedAt);
}

void CallState::set_method(std::string_view name) {
  const std::lock_guard lock(mutex_);
  method_ = name;
}

std::string_view CallState::awaited_method() const {
  std::string_view method;
  std::shared_ptr<const CallState> at;  // keeps the one that is looked at
  for (std::size_t looked = 0; looked < kMostLookedAt; ++looked) {
    const CallState& here = at == nullptr ? *this : *at;
    std::shared_ptr<const CallState> next;
    {
      const std::lock_guard lock(here.mutex_);
      if (!here.method_.empty()) method = here.method_;
      if (here.parts_ == nullptr) break;
      for (const auto& weak : here.parts_->of) {
        next = weak.lock();
        if (next != nullptr && !next->ready()) break;
        next = nullptr;
      }
    }
    if (next == nullptr) break;
    at = std::move(next);
  }
  return method;
}

bool CallState::wait(Duration timeout) {
  if (ready()) return true;
  if (timeout > Duration::zero()) {
    if (this_thread.turn != nullptr &&
        needs_cause({.turn = this_thread.turn}, std::numeric_limits<std::size_t>::max()))
      throw BadConfig("an actor waits for itself",
                      "it answers a call that this waits for when the method that waits has returned",
                      "co_await it in a method that returns troupe::Task<T>, or call the method itself");
    const CallState* const answers = this_thread.answers == nullptr ? nullptr : this_thread.answers->get();
    if (answers != nullptr && needs(*answers))
      throw BadConfig("a method or task waits for its own answer", "that is there when it has returned",
                      "return without it: the answer of another call may be waited for");
  }
  const Counted counted(waiting_);
  const MonotonicClock clock;
  const Instant now = clock.now();
  const Instant deadline = timeout > Duration::max() - now ? Duration::max() : now + timeout;
  const auto wait_until = [this, &clock](Instant until) {
    if (waiter_ != nullptr) {
      waiter_->wait([this] { return ready(); }, ready_, sleepers_, until);
      return ready();
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    for (Instant t = clock.now(); !ready() && t < until; t = clock.now()) futex_wait(ready_, 0, until - t);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return ready();
  };
  const bool helps = this_thread.helper != nullptr && !this_thread.may_not_wait && timeout > Duration::zero();
  if (!helps) return wait_until(deadline);
  const Helped helped(*this_thread.helper);
  for (;;) {
    helped.by.help(*this, deadline);
    // A task of its own comes back when its worker dies.
    const Instant until = std::min(deadline, clock.now() + kLooksAgain);
    if (ready() || wait_until(until)) return true;
    if (until == deadline) return false;
  }
}

void CallState::on_ready(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!ready()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  if (!is_here()) return begin_load()->on_ready(std::move(callback));
  callback();
}

void CallState::watch(const void* owner, std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!ready()) {
      if (watchers_ == nullptr)
        watchers_ = std::make_unique<std::unordered_map<const void*, std::function<void()>>>();
      watchers_->insert_or_assign(owner, std::move(callback));
      return;
    }
  }
  callback();
}

void CallState::unwatch(const void* owner) {
  std::function<void()> dropped;  // after the lock: it may hold the last of something
  const std::lock_guard lock(mutex_);
  if (watchers_ == nullptr) return;
  if (const auto at = watchers_->find(owner); at != watchers_->end()) {
    dropped = std::move(at->second);
    watchers_->erase(at);
  }
}

void CallState::keep(wire::Kept kept) {
  if (kept.empty()) return;
  const std::lock_guard lock(mutex_);
  if (!ready()) kept_ = std::make_unique<wire::Kept>(std::move(kept));
}

wire::Kept CallState::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_ == nullptr ? wire::Kept() : *kept_;
}

std::string CallState::waits_for() const {
  const std::lock_guard lock(mutex_);
  return waits_for_ == nullptr ? std::string() : *waits_for_;
}

void CallState::set_waits_for(std::string why) {
  const std::lock_guard lock(mutex_);
  waits_for_ = std::make_unique<std::string>(std::move(why));
}

void CallState::set_fold_at(std::string member) {
  const std::lock_guard lock(mutex_);
  fold_at_ = std::make_unique<std::string>(std::move(member));
  if (ready()) name_in_failure();  // the member was known to be gone
}

void CallState::name_in_failure() {
  if (fold_at_ == nullptr || outcome_.ok()) return;
  ErrorInfo error = outcome_.error();
  if (!error.origin.empty() || error.code == ErrorCode::kCancelled) return;
  error.what = *fold_at_ + ": " + error.what;
  outcome_ = std::move(error);
}

std::string CallState::fold_at() const {
  const std::lock_guard lock(mutex_);
  return fold_at_ == nullptr ? std::string() : *fold_at_;
}

void CallState::set_on_cancel(std::function<void(Duration)> hook) {
  on_cancel_ = std::make_unique<std::function<void(Duration)>>(std::move(hook));
}

void CallState::cancel(ErrorInfo why, Duration grace) {
  const bool goes_on = on_cancel_ == nullptr;  // its callee reads what it was given
  if (fill(std::move(why), nullptr, {}, goes_on) && !goes_on) (*on_cancel_)(grace);
}

}  // namespace troupe
