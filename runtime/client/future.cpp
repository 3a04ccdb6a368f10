#include "runtime/client/future.hpp"

#include <algorithm>
#include <atomic>
#include <sstream>

#include "runtime/client/task.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/host/actor_context.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/tasks/tasks.hpp"

namespace troupe::detail {

void throw_empty_future() {
  throw BadConfig("a Future without a call was used", "it was default-constructed or moved from",
                  "use the Future that call(), spawn_async() or Promise::future() gave");
}

void throw_moved_promise() {
  throw BadConfig("a Promise without a Future was used", "it was moved from",
                  "copy a Promise that you use again: copies fill the same Future");
}

namespace {

/// What the request behind a call waits for, so far as this process knows.
std::string why_waits(const CallState& call) {
  if (std::string told = call.waits_for(); !told.empty()) return told;
  ProcessGate* gate = ProcessGate::current();
  const auto tasks = gate == nullptr ? nullptr : gate->tasks();
  return tasks == nullptr ? "" : tasks->why_waits(call);
}

}  // namespace

void throw_call_timeout(const CallState& call, Duration timeout) {
  std::ostringstream seconds;
  seconds << std::max(0.0, to_seconds(timeout));
  if (const std::string why = why_waits(call); !why.empty())
    throw Timeout(ErrorInfo{
        ErrorCode::kTimeout, "there is no answer yet",
        seconds.str() + " s passed, and it still waits: " + why,
        "wait longer, ask for less, or add a node; troupe status shows what is free and what starts"});
  if (const std::string member = call.fold_at(); !member.empty())
    throw Timeout(ErrorInfo{
        ErrorCode::kTimeout, "a fold gave no answer",
        "within " + seconds.str() + " s none came from " + member +
            ", where the answers of all come together",
        "raise the timeout, or look at what the members do: call_all names those that do not answer"});
  const std::string_view method = call.awaited_method();
  throw Timeout(ErrorInfo{ErrorCode::kTimeout,
                          "a call" + (method.empty() ? "" : " of " + std::string(method)) + " gave no answer",
                          "within " + seconds.str() + " s none came",
                          "raise the timeout, or look at what the actor or task does"});
}

const Outcome& outcome_of(CallState& call, Duration timeout) {
  if (call.is_here()) return call.outcome();
  const bool may_wait = thread_may_wait();
  if (call.load(may_wait ? timeout : Duration::zero())) return call.outcome();
  if (!may_wait)
    throw BadConfig("an answer is not in memory",
                    "it lay on disk until now, and this thread must not wait until it is read",
                    "co_await its Future in a method that returns troupe::Task<T>, or use then(callback)");
  std::ostringstream seconds;
  seconds << std::max(0.0, to_seconds(timeout));
  throw Timeout({ErrorCode::kTimeout, "an answer was not read back",
                 "it is there, and did not come from disk within " + seconds.str() + " s",
                 "see whether the disk is stuck"});
}

ErrorInfo dropped_promise() {
  if (const ActorContext* actor = current_actor(); actor != nullptr && actor->ended() != nullptr) {
    return {ErrorCode::kActorDied, "the actor is gone", "it ended before it answered: " + *actor->ended(),
            "spawn it again, or monitor it to be told"};
  }
  return {ErrorCode::kTaskFailed, "a Future will never be ready", "its Promise was dropped without an answer",
          "call set() or fail() before the last copy of the Promise is gone"};
}

ErrorInfo not_wanted() {
  return {ErrorCode::kCancelled, "a call has no answer", "it was cancelled", ""};
}

std::shared_ptr<CallState> all_of(std::vector<std::shared_ptr<CallState>> states, bool values) {
  struct Gathering {
    std::vector<std::shared_ptr<CallState>> states;
    std::atomic<std::size_t> missing{0};
  };
  auto all = std::make_shared<CallState>(nullptr);
  const auto gathering = std::make_shared<Gathering>();
  gathering->states = std::move(states);
  all->set_parts(gathering->states, gathering->states.size());
  // One more than there are: nothing is complete before every callback is set.
  gathering->missing = gathering->states.size() + 1;
  const auto one_less = [gathering, all, values] {
    if (gathering->missing.fetch_sub(1) != 1) return;
    if (!values) {
      all->resolve(wire::Bytes{});
      return;
    }
    // A vector is a count and its elements' encodings, which the answers are.
    wire::Writer to;
    to.append_count(gathering->states.size());
    wire::Kept refers_to;
    for (const auto& state : gathering->states) {
      if (!state->outcome().ok()) return;  // has failed `all`
      to.append(*state->outcome());
      for (auto& one : state->refers_to()) refers_to.push_back(std::move(one));
    }
    all->resolve(to.take("vector of answers"), std::move(refers_to));
  };
  for (const auto& state : gathering->states) {
    // The state holds its callbacks, so these may not hold it: by address.
    state->on_ready([one_less, all, state = state.get()] {
      if (!state->outcome().ok()) all->resolve(state->outcome().error());
      one_less();
    });
  }
  one_less();
  return all;
}

namespace {

/// Waits for some of several calls. Its result keeps it: nobody waits any more, and it is gone from all.
class SomeOf : public std::enable_shared_from_this<SomeOf> {
 public:
  using States = std::vector<std::shared_ptr<CallState>>;
  SomeOf(States states, std::size_t count, const std::shared_ptr<CallState>& result)
      : states_(std::move(states)), count_(count), result_(result) {}
  ~SomeOf() {
    for (const auto& state : states_) state->unwatch(&state);
  }
  SomeOf(const SomeOf&) = delete;
  SomeOf& operator=(const SomeOf&) = delete;

  /// `done(i)`: as many are ready as are wanted, the last of which was the i-th.
  void watch(const std::function<void(SomeOf&, std::size_t)>& done) {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      states_[i]->watch(&states_[i], [weak = weak_from_this(), done, i] {
        const auto self = weak.lock();
        if (self != nullptr && self->ready_.fetch_add(1) + 1 == self->count_) done(*self, i);
      });
    }
  }
  void resolve(const Outcome& outcome) {
    if (const auto result = result_.lock()) result->resolve(outcome);
  }
  void resolve_with_ready() {
    Waited waited;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const bool is_one = waited.ready.size() < count_ && states_[i]->ready();
      (is_one ? waited.ready : waited.pending).push_back(i);
    }
    resolve(wire::encode(waited));
  }

 private:
  const States states_;
  const std::size_t count_;
  const std::weak_ptr<CallState> result_;
  std::atomic<std::size_t> ready_{0};
};

constexpr Duration kStep = std::chrono::seconds(1);

/// A timer cannot be taken back, so a long time is many short ones: what was answered leaves none for long.
void end_after(ProcessGate& gate, const std::weak_ptr<SomeOf>& some, Duration left) {
  gate.later(std::min(left, kStep), [&gate, some, left] {
    const auto self = some.lock();
    if (self == nullptr) return;
    if (left > kStep) return end_after(gate, some, left - kStep);
    self->resolve_with_ready();
  });
}

std::shared_ptr<SomeOf> watch_some(SomeOf::States states, std::size_t count,
                                   const std::shared_ptr<CallState>& result,
                                   const std::function<void(SomeOf&, std::size_t)>& done) {
  auto some = std::make_shared<SomeOf>(std::move(states), count, result);
  result->keep({some});
  some->watch(done);
  return some;
}

}  // namespace

std::shared_ptr<CallState> first_of(std::vector<std::shared_ptr<CallState>> states) {
  if (states.empty()) {
    throw BadConfig("when_any of no futures", "none of them will ever be ready", "give it one or more");
  }
  auto first = std::make_shared<CallState>(nullptr);
  first->set_parts(states, 1);
  watch_some(std::move(states), 1, first, [](SomeOf& some, std::size_t i) { some.resolve(wire::encode(i)); });
  return first;
}

std::shared_ptr<CallState> some_of(std::vector<std::shared_ptr<CallState>> states, std::size_t count,
                                   Duration timeout) {
  if (count == 0 || count > states.size()) {
    throw BadConfig(
        "cannot wait for " + std::to_string(count) + " of " + std::to_string(states.size()) + " futures",
        "so many will never be ready", "wait for one or more, and no more than there are");
  }
  auto result = std::make_shared<CallState>(nullptr);
  if (timeout == Duration::max()) result->set_parts(states, count);  // else it is ready then
  const auto some = watch_some(std::move(states), count, result,
                               [](SomeOf& ready, std::size_t) { ready.resolve_with_ready(); });
  if (timeout == Duration::max() || result->ready()) return result;
  if (timeout <= Duration::zero()) {
    some->resolve_with_ready();
    return result;
  }
  ProcessGate* gate = ProcessGate::current();
  if (gate == nullptr)
    throw BadConfig("cannot wait with a timeout", "this process belongs to no cluster", "call init() first");
  end_after(*gate, some, timeout);
  return result;
}

void throw_empty_task() {
  throw BadConfig("a Task without a coroutine was awaited", "it was moved from", "await a Task once");
}

void throw_own_answer() {
  throw BadConfig("a Task waits for its own answer",
                  "it awaits the Future of its own call, or one that waits for that",
                  "co_await a call that ends without this one");
}

void run_task(TaskRoot task) {
  TROUPE_ASSERT(current_actor() != nullptr, "methods run in an actor's turn");
  current_actor()->tasks().start(*task.promise);
}

void check_runs_tasks() {
  if (current_actor() != nullptr) current_actor()->tasks();
}

}  // namespace troupe::detail
