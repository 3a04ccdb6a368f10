/// The one thread and the one ZeroMQ context of a process, which serve all its links between hosts. Internal
/// to zmq/.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"
#include "runtime/security/zap_handler.hpp"

namespace troupe::zmq_link {

inline constexpr Instant kNever = Instant::max();

/// What the loop drives: a server or a client.
class LoopMember {
 public:
  virtual ~LoopMember() = default;

 protected:
  friend class ZmqLoop;
  /// Does what can be done now, on the loop's thread: after a descriptor it watches became readable, after
  /// ready(), and when its time came. Returns when to be called again at the latest; `now` or earlier: there
  /// is more to do.
  virtual Instant turn(Instant now) = 0;
  /// After a turn: it has let go of all, and must not be called again.
  virtual bool is_over() const = 0;

 private:
  bool is_ready_ = false;  // in the list of those to be called; guarded by the loop's mutex
  Instant due_ = kNever;   // the loop's thread alone
};

class ZmqLoop {
 public:
  /// Errors: kIo.
  static Result<std::unique_ptr<ZmqLoop>> start(const Clock& clock);
  /// REQUIRES: no members.
  ~ZmqLoop();

  zmq::context_t& context() { return context_; }
  ZapHandler& zap() { return *zap_; }
  const Clock& clock() const { return clock_; }

  // Thread-safe:
  void add(LoopMember& member);
  /// Waits until the member is over. REQUIRES: called by another thread than the loop's; the member knows
  /// that it is to end.
  void leave(LoopMember& member);
  /// The member has something to do.
  void ready(LoopMember& member);
  bool is_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // On the loop's thread:
  /// Gives `member` a turn while `socket` has something to tell. After a turn nothing that was there may be
  /// left without saying so: a ZeroMQ descriptor is readable once for what arrives.
  void watch(zmq::socket_t& socket, LoopMember& member);
  void forget(zmq::socket_t& socket);

 private:
  ZmqLoop(const Clock& clock, UniqueFd epoll, UniqueFd wake);
  void run();
  void give_turns(Instant now);
  void wait(Instant now);
  bool note(LoopMember& member);  ///< True: the loop sleeps. REQUIRES: mutex_ is held.
  void wake();

  const Clock& clock_;
  zmq::context_t context_;
  std::unique_ptr<ZapHandler> zap_;
  UniqueFd epoll_;
  UniqueFd wake_;
  int zap_fd_ = -1;

  // The loop's thread alone:
  std::set<std::pair<Instant, LoopMember*>> timers_;
  std::vector<LoopMember*> turns_;
  bool zap_ready_ = true;

  std::mutex mutex_;  ///< guards all below
  std::condition_variable left_;
  std::unordered_set<LoopMember*> members_;
  std::vector<LoopMember*> ready_;
  bool sleeping_ = false;
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace troupe::zmq_link
