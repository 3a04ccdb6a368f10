#include "runtime/client/future.hpp"

#include <algorithm>
#include <atomic>
#include <sstream>

#include "runtime/host/actor_context.hpp"

namespace troupe::detail {

void throw_empty_future() {
  throw BadConfig("a Future without a call was used", "it was default-constructed or moved from",
                  "use the Future that call(), spawn_async() or Promise::future() gave");
}

void throw_moved_promise() {
  throw BadConfig("a Promise without a Future was used", "it was moved from",
                  "copy a Promise that you use again: copies fill the same Future");
}

void throw_call_timeout(Duration timeout) {
  std::ostringstream seconds;
  seconds << std::max(0.0, to_seconds(timeout));
  throw Timeout(ErrorInfo{ErrorCode::kTimeout, "a call gave no answer",
                          "within " + seconds.str() + " s none came",
                          "raise the timeout, or look at what the actor does"});
}

ErrorInfo dropped_promise() {
  if (const ActorContext* actor = current_actor(); actor != nullptr && actor->ended() != nullptr) {
    return {ErrorCode::kActorDied, "the actor is gone", "it ended before it answered: " + *actor->ended(),
            "spawn it again, or monitor it to be told"};
  }
  return {ErrorCode::kTaskFailed, "a Future will never be ready", "its Promise was dropped without an answer",
          "call set() or fail() before the last copy of the Promise is gone"};
}

std::shared_ptr<CallState> all_of(std::vector<std::shared_ptr<CallState>> states, bool values) {
  struct Gathering {
    std::vector<std::shared_ptr<CallState>> states;
    std::atomic<std::size_t> missing{0};
  };
  auto all = std::make_shared<CallState>(nullptr);
  const auto gathering = std::make_shared<Gathering>();
  gathering->states = std::move(states);
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
    for (const auto& state : gathering->states) {
      if (!state->outcome().ok()) return;  // has failed `all`
      to.append(*state->outcome());
    }
    all->resolve(to.take("vector of answers"));
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

}  // namespace troupe::detail
