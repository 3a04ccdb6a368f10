/// A thread of a node that looks at other processes through /proc: such a read waits for as long as the other
/// process holds the lock of its memory, and the node's loop must not.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/node/event_loop.hpp"
#include "runtime/node/stuck_processes.hpp"

namespace troupe::node {

/// `post` and the end belong to the loop's thread. A look that does not come back is left to its thread, and
/// the next ones go on in another.
class LookThread {
 public:
  /// What a look found, for the loop.
  using Then = EventLoop::Callback;
  /// It asks for each process that it may wait for (StuckProcesses::look_at). It owns what it uses: it may
  /// outlive the LookThread.
  using Look = std::function<Then(StuckProcesses&)>;
  /// Looks that wait for their turn: one more is not done.
  static constexpr std::size_t kMostPosted = 4096;

  explicit LookThread(EventLoop& loop);
  /// Drops what is posted, and waits a second for the look at hand: one that is stuck is left to itself.
  ~LookThread();
  LookThread(const LookThread&) = delete;
  LookThread& operator=(const LookThread&) = delete;

  /// Calls `look` in the thread, after those before it, and in the loop what it returns; or, once `timeout`
  /// is over, or there are too many, `instead`: then nothing comes of the look.
  void post(Look look, Duration timeout, Then instead);
  /// Calls `look` in the thread, after those before it, and waits for it so long at most: for an owner that
  /// ends, whose loop runs no more. Whether it was done.
  bool finish(std::function<void(StuckProcesses&)> look, Duration timeout);

 private:
  struct Posted {
    std::uint64_t number = 0;
    Look look;
  };
  struct State {
    explicit State(EventLoop& one) : loop(one) {}
    EventLoop& loop;  ///< used under `mutex` and while not stopping
    StuckProcesses stuck;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Posted> posted;  ///< guarded by mutex, as all below
    std::uint64_t last = 0;     ///< number of a look
    std::uint64_t at_hand = 0;  ///< the look that runs; 0: none
    std::uint64_t turn = 1;     ///< the thread that takes looks; those before it are left to themselves
    std::thread thread;         ///< that one
    bool stopping = false;
    bool ended = false;
  };
  static void start(const std::shared_ptr<State>& state);
  static void run(State& state, std::uint64_t turn);
  static void give_up(const std::shared_ptr<State>& state, std::uint64_t number);

  std::shared_ptr<State> state_;
};

}  // namespace troupe::node
