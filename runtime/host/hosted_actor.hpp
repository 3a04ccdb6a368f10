/// An actor of this process: a user's object inside a CAF actor, which gives it its mailbox and its turn.
#pragma once

#include <caf/all.hpp>
#include <functional>
#include <memory>
#include <string>

#include "runtime/host/actor_context.hpp"
#include "runtime/host/registry.hpp"
#include "runtime/host/responder.hpp"

namespace troupe {

/// A method call on its way through a mailbox.
struct CallMessage {
  std::uint64_t method = 0;
  wire::Bytes args;
  std::shared_ptr<Responder> responder;
};
/// Work that runs as the actor.
struct RunMessage {
  std::function<void()> work;
};
/// Ends the actor.
struct StopMessage {
  std::string reason;
};

/// One hosted actor, from the outside.
class HostedActor {
 public:
  struct Spec {
    ActorAddress address;
    std::uint64_t constructor = 0;
    wire::Bytes args;
    bool isolated = false;  ///< a thread of its own
  };
  using OnReady = std::function<void(Result<void>)>;
  using OnEnd = std::function<void(const ActorAddress&, const std::string& reason)>;

  /// Constructs the object in the actor's own turn and reports by `on_ready`; `on_end` is called when the
  /// actor ends.
  static std::shared_ptr<HostedActor> start(caf::actor_system& system, Process& process, Spec spec,
                                            OnReady on_ready, OnEnd on_end);

  /// Puts a message into the mailbox. With `unit` the actor may take its turn in the calling thread (see
  /// InlineUnit).
  void enqueue(caf::message message, caf::execution_unit* unit);

 private:
  explicit HostedActor(caf::actor actor) : actor_(std::move(actor)) {}
  caf::actor actor_;
};

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
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::StopMessage)
