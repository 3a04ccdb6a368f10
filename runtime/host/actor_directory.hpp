/// Where actors are that are started again when they die, as far as this process calls them; and their calls,
/// which wait while it is not known, and are sent again or fail when a life ends.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/host/bounded_memory.hpp"
#include "runtime/host/call_table.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/wire/cluster.hpp"

namespace troupe {

/// Thread-safe. Its functions are called without its lock, and may be called at once.
///
/// A place is asked for at the first call, and told whenever it changes. That a process died is heard before
/// the head has decided what follows: the calls that it had are kept until it says whether another life does.
///
/// Invariant: a call waits here, is in the call table, or has ended. Calls of one caller are sent in order;
/// one that is sent again comes behind those that were sent meanwhile.
class ActorDirectory {
 public:
  using Call = std::shared_ptr<MovingCall>;
  struct Floor {
    /// Asks the node where that actor is; answered by told().
    std::function<void(ActorId)> ask;
    /// Error: it was not sent. kActorDied: that process is gone.
    std::function<Result<void>(const Call&, ProcessAddress)> send;
    /// Takes the calls of that actor which wait for answers of processes other than this one.
    std::function<std::vector<Call>(ActorId, ProcessAddress but)> take_sent;
    /// Calls resume() of that actor in a while.
    std::function<void(ActorId)> resume_later;
    /// These two in a thread of the runtime, in order.
    std::function<void(std::shared_ptr<CallState>, ErrorInfo)> resolve;
    std::function<void(OnDeath, Death)> notify;
  };
  explicit ActorDirectory(Floor floor) : floor_(std::move(floor)) {}

  void call(Call call);
  void monitor(ActorId actor, OnDeath callback);

  /// What the head says, by the node.
  void told(const cluster::ActorPlace& place);
  /// A call that was sent to `at` gets no answer: its process or node is dead (kActorDied), or the link to it
  /// broke.
  void failed(const Call& call, ProcessAddress at, const ErrorInfo& why);
  /// It was answered with an error. `never_sent`: by a hop, before it got there. One that could not be sent
  /// now (the link is full, or broke and nobody has said yet that its node is dead) is sent again in a while,
  /// if it may be sent again at all.
  void answered(const Call& call, ProcessAddress at, const ErrorInfo& error, bool never_sent);
  /// The while is over.
  void resume(ActorId actor);
  /// The node is gone: nothing is told any more. To who monitors an actor that is its death.
  void close(const ErrorInfo& why);

  /// Bytes of calls to one actor that wait.
  static constexpr std::size_t kMostWaiting = std::size_t{64} << 20;

 private:
  struct Entry {
    bool known = false;
    cluster::ActorPlace at;
    bool gone = false;         ///< its process died, and what follows was not told yet
    bool flushing = false;     ///< a thread sends what waits
    bool paused = false;       ///< until resume(): what was sent last could not be
    std::deque<Call> waiting;  ///< by their order
    std::uint64_t calls = 0;
    std::size_t waiting_bytes = 0;
    std::vector<Call> lost;  ///< sent to a process that died; until it is told what follows
    std::vector<OnDeath> monitors;
    bool is_reachable() const { return known && at.life == cluster::ActorLife::kLives && !gone && !paused; }
  };
  /// What is done without the lock.
  using After = std::vector<std::function<void()>>;

  Entry& entry_of(ActorId actor, After& after);
  void wait(Entry& entry, Call call);
  static void say_why(const Entry& entry, const Call& call);
  void resolve(const Call& call, ErrorInfo error, After& after);
  void notify(const OnDeath& callback, Death death, After& after);
  /// A life ended with them: sent again, or failed with `why`.
  void decide(Entry& entry, const std::vector<Call>& calls, const ErrorInfo& why, After& after);
  void end(ActorId actor, Entry& entry, const std::string& reason, After& after);
  void flush(ActorId actor);
  void run(After& after);

  const Floor floor_;
  std::mutex mutex_;  ///< guards all below
  std::map<ActorId, Entry> entries_;
  BoundedMemory<ActorId, std::string> ended_;
  std::optional<ErrorInfo> closed_;
};

}  // namespace troupe
