/// A thread of a node that looks at other processes through /proc: such a read waits for as long as the other
/// process holds the lock of its memory, and the node's loop must not.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/node/event_loop.hpp"

namespace troupe::node {

/// `post` and the end belong to the loop's thread.
class LookThread {
 public:
  /// What a look found, for the loop.
  using Then = EventLoop::Callback;

  explicit LookThread(EventLoop& loop);
  /// Drops what is posted, and waits a second for the look at hand: one that is stuck is left to itself.
  ~LookThread();
  LookThread(const LookThread&) = delete;
  LookThread& operator=(const LookThread&) = delete;

  /// Calls `look` in the thread, after those before it, and in the loop what it returns; or, once `timeout`
  /// is over, `instead`: then nothing comes of the look. `look` may outlive this object: it owns what it
  /// uses.
  void post(std::function<Then()> look, Duration timeout, Then instead);
  /// Calls `look` in the thread, after those before it, and waits for it so long at most: for an owner that
  /// ends, whose loop runs no more. Whether it was done. `look` owns what it uses.
  bool finish(std::function<void()> look, Duration timeout);

 private:
  struct State {
    explicit State(EventLoop& one) : loop(one) {}
    EventLoop& loop;  ///< used under `mutex` and while not stopping
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<Then()>> posted;  ///< guarded by mutex, as all below
    bool stopping = false;
    bool ended = false;
  };
  static void run(State& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace troupe::node
