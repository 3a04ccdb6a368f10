#include "runtime/node/look_thread.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::node {
namespace {

constexpr Duration kLastLook = std::chrono::seconds(1);

}  // namespace

LookThread::LookThread(EventLoop& loop) : state_(std::make_shared<State>(loop)) {
  start(state_);
}

/// REQUIRES: the mutex is held, or nobody else knows the state yet.
void LookThread::start(const std::shared_ptr<State>& state) {
  state->thread = start_quiet_thread([state, turn = state->turn] { run(*state, turn); });
}

LookThread::~LookThread() {
  bool ended = false;
  std::thread thread;
  {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->posted.clear();
    state_->changed.notify_all();
    ended = state_->changed.wait_for(lock, kLastLook, [this] { return state_->ended; });
    thread = std::move(state_->thread);
  }
  if (ended) {
    thread.join();
  } else {
    thread.detach();
  }
}

void LookThread::post(Look look, Duration timeout, Then instead) {
  const auto is_settled = std::make_shared<bool>(false);  // of the loop's thread
  const auto give_way = [is_settled, instead = std::move(instead)] {
    if (!std::exchange(*is_settled, true)) instead();
  };
  const std::lock_guard lock(state_->mutex);
  if (state_->posted.size() >= kMostPosted) return state_->loop.post(give_way);
  const std::uint64_t number = ++state_->last;
  state_->loop.after(timeout, [state = state_, number, is_settled, give_way] {
    if (*is_settled) return;
    give_up(state, number);
    give_way();
  });
  state_->posted.push_back({number, [is_settled, look = std::move(look)](StuckProcesses& stuck) -> Then {
                              return [is_settled, then = look(stuck)] {
                                if (!std::exchange(*is_settled, true)) then();
                              };
                            }});
  state_->changed.notify_all();
}

/// Its time is over. One that waits for its turn is dropped; one that runs keeps its thread.
void LookThread::give_up(const std::shared_ptr<State>& state, std::uint64_t number) {
  const std::lock_guard lock(state->mutex);
  if (state->stopping) return;
  if (state->at_hand != number) {
    std::erase_if(state->posted, [&](const Posted& one) { return one.number == number; });
    return;
  }
  std::thread stuck = std::move(state->thread);
  ++state->turn;
  try {
    start(state);
  } catch (const Error& error) {  // no thread is to be had: it is waited for
    --state->turn;
    state->thread = std::move(stuck);
    log(LogLevel::kWarning, std::string("cannot start a thread for looks at processes: ") + error.what());
    return;
  }
  state->at_hand = 0;
  stuck.detach();
}

bool LookThread::finish(std::function<void(StuckProcesses&)> look, Duration timeout) {
  const auto is_done = std::make_shared<bool>(false);  // guarded by mutex
  std::unique_lock lock(state_->mutex);
  const auto last = [state = state_, is_done, look = std::move(look)](StuckProcesses& stuck) -> Then {
    look(stuck);
    const std::lock_guard done(state->mutex);
    *is_done = true;
    state->changed.notify_all();
    return [] {};
  };
  state_->posted.push_back({++state_->last, last});
  state_->changed.notify_all();
  return state_->changed.wait_for(lock, timeout, [&] { return *is_done; });
}

void LookThread::run(State& state, std::uint64_t turn) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return state.stopping || !state.posted.empty(); });
    if (state.stopping) break;
    const Posted next = std::move(state.posted.front());
    state.posted.pop_front();
    state.at_hand = next.number;
    lock.unlock();
    Then then = next.look(state.stuck);
    lock.lock();
    if (state.turn != turn) return;  // it came too late: another thread has its place
    state.at_hand = 0;
    if (!state.stopping) state.loop.post(std::move(then));
  }
  state.ended = true;
  state.changed.notify_all();
}

}  // namespace troupe::node
