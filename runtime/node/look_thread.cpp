#include "runtime/node/look_thread.hpp"

#include <utility>

#include "runtime/core/quiet_thread.hpp"

namespace troupe::node {
namespace {

constexpr Duration kLastLook = std::chrono::seconds(1);

}  // namespace

LookThread::LookThread(EventLoop& loop) : state_(std::make_shared<State>(loop)) {
  thread_ = start_quiet_thread([state = state_] { run(*state); });
}

LookThread::~LookThread() {
  bool ended = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->posted.clear();
    state_->changed.notify_all();
    ended = state_->changed.wait_for(lock, kLastLook, [this] { return state_->ended; });
  }
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void LookThread::post(std::function<Then()> look, Duration timeout, Then instead) {
  const auto is_settled = std::make_shared<bool>(false);  // of the loop's thread
  state_->loop.after(timeout, [is_settled, instead = std::move(instead)] {
    if (!std::exchange(*is_settled, true)) instead();
  });
  const std::lock_guard lock(state_->mutex);
  state_->posted.push_back([is_settled, look = std::move(look)]() -> Then {
    return [is_settled, then = look()] {
      if (!std::exchange(*is_settled, true)) then();
    };
  });
  state_->changed.notify_all();
}

bool LookThread::finish(std::function<void()> look, Duration timeout) {
  const auto is_done = std::make_shared<bool>(false);  // guarded by mutex
  std::unique_lock lock(state_->mutex);
  state_->posted.push_back([state = state_, is_done, look = std::move(look)]() -> Then {
    look();
    const std::lock_guard done(state->mutex);
    *is_done = true;
    state->changed.notify_all();
    return [] {};
  });
  state_->changed.notify_all();
  return state_->changed.wait_for(lock, timeout, [&] { return *is_done; });
}

void LookThread::run(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return state.stopping || !state.posted.empty(); });
    if (state.stopping) break;
    const auto look = std::move(state.posted.front());
    state.posted.pop_front();
    lock.unlock();
    Then then = look();
    lock.lock();
    if (!state.stopping) state.loop.post(std::move(then));
  }
  state.ended = true;
  state.changed.notify_all();
}

}  // namespace troupe::node
