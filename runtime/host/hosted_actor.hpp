/// An actor of this process: a user's object inside a CAF actor, which gives it its mailbox, its turn, its
/// timers and, where it may block, a thread of its own.
#pragma once

#include <caf/all.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/host/actor_context.hpp"
#include "runtime/host/registry.hpp"
#include "runtime/host/responder.hpp"
#include "runtime/objects/references.hpp"

namespace troupe {

/// What an actor needs of the process around it.
class ActorHome {
 public:
  virtual ~ActorHome() = default;
  virtual ProcessGate& gate() = 0;
  /// So many answers wait to be sent to `caller`, with `held` bytes that its actor holds back, that no
  /// further call of it should be carried out now.
  virtual bool is_congested(ProcessAddress caller, std::size_t held) = 0;
  /// Calls `resume`, in any thread, when that is over.
  virtual void when_drained(ProcessAddress caller, std::function<void()> resume) = 0;
  /// A one-way call of `bytes` left its actor's mailbox, carried out or not.
  virtual void carried_out(ProcessAddress caller, std::size_t bytes) = 0;
};

/// Keeps what an actor saves for its next life.
class StateKeeper {
 public:
  virtual ~StateKeeper() = default;
  /// What the life before saved last: an encoded std::optional<wire::Bytes>. Once, in the actor's first turn.
  virtual std::shared_ptr<CallState> last() = 0;
  /// Resolved once the next life has it, whatever ends this one. Thread-safe; does not wait.
  virtual std::shared_ptr<CallState> keep(wire::Bytes state) = 0;
};

/// A method call on its way through a mailbox.
struct IncomingCall {
  IncomingCall(ActorHome& in, ProcessAddress caller, std::uint64_t of, wire::Bytes arguments, Responder to,
               std::size_t one_way)
      : home(in),
        from(caller),
        method(of),
        args(std::move(arguments)),
        responder(std::move(to)),
        one_way_bytes(one_way) {}
  ~IncomingCall() {
    if (one_way_bytes != 0) home.carried_out(from, one_way_bytes);
  }
  IncomingCall(const IncomingCall&) = delete;
  IncomingCall& operator=(const IncomingCall&) = delete;

  ActorHome& home;
  const ProcessAddress from;
  const std::uint64_t method;
  wire::Bytes args;
  Responder responder;
  std::shared_ptr<const objects::References> references;  ///< null: it refers to no object
  const std::size_t one_way_bytes;  ///< to give back to the caller's window; 0 for a call with an answer
};
struct CallMessage {
  std::shared_ptr<IncomingCall> call;
};
/// Work that runs as the actor.
struct RunMessage {
  std::function<void()> work;
};
/// Work of the runtime's in the actor's turn.
struct TurnMessage {
  std::function<void()> work;
};
/// An actor's first: constructs the object.
struct StartMessage {};
/// Takes up the calls of that caller, which waited for it to read answers, or for objects.
struct ResumeMessage {
  ProcessAddress caller;
};
/// Ends the actor, once the answers that wait for its state have left; or (`at_once`) without them.
struct StopMessage {
  std::string reason;
  bool at_once = false;
};

struct ActorStart {
  ActorAddress address;
  std::uint64_t constructor = 0;
  wire::Bytes args;
  bool isolated = false;  ///< a thread of its own
  std::int32_t max_concurrency = 1;
  std::shared_ptr<StateKeeper> keeper{};  ///< null: it has no other life
};
using OnActorReady = std::function<void(Result<void>)>;
using OnActorEnd = std::function<void(const ActorAddress&, const std::string& reason)>;

/// Hosts an actor. A StartMessage constructs the object and reports by `on_ready`; `on_end` is called once
/// when it ends, before that turn is over. Without `threads` an isolated actor has none of its own.
caf::strong_actor_ptr host_actor(caf::actor_system& system, ActorHome& home, ActorStart start, bool threads,
                                 OnActorReady on_ready, OnActorEnd on_end);
/// Puts a message into an actor's mailbox. With `unit` the actor may take its turn in the calling thread.
void enqueue(const caf::strong_actor_ptr& actor, caf::message message, caf::execution_unit* unit);
void enqueue_after(const caf::strong_actor_ptr& actor, Duration delay, RunMessage message);

/// Gives actors their turn in the thread that received the message, which saves the wake-up of a scheduler
/// thread (38 microseconds a hop on the machines we measured). Used by the receiving thread only.
class InlineUnit final : public caf::execution_unit {
 public:
  explicit InlineUnit(caf::actor_system& system) : caf::execution_unit(&system) {}
  void exec_later(caf::resumable* job) override { jobs_.push_back(job); }
  /// Runs every actor that has something to do.
  void run();

 private:
  std::vector<caf::resumable*> jobs_;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::CallMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RunMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::TurnMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::StartMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ResumeMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::StopMessage)
