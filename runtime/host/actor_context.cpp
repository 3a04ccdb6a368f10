#include "runtime/host/actor_context.hpp"

#include <atomic>

#include "runtime/client/future.hpp"
#include "runtime/client/session.hpp"
#include "runtime/host/callbacks.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/host/this_thread.hpp"

namespace troupe {
namespace {

/// A program is one process of a cluster; simulations, which run several, use scopes.
std::atomic<ProcessGate*> only_gate{nullptr};

}  // namespace

ActorContext* current_actor() {
  return this_thread.turn;
}

ActorContext& this_actor() {
  if (this_thread.turn == nullptr) {
    throw BadConfig("this_actor() was called outside of an actor",
                    "no actor's constructor or method runs in this thread",
                    "keep a reference to the ActorContext for threads of your own");
  }
  return *this_thread.turn;
}

CurrentActorScope::CurrentActorScope(ActorContext* actor) : before_(std::exchange(this_thread.turn, actor)) {}
CurrentActorScope::~CurrentActorScope() {
  this_thread.turn = before_;
}

Session ActorContext::session() const {
  return Session(process());
}

ProcessGate::ProcessGate() {
  ProcessGate* none = nullptr;
  only_gate.compare_exchange_strong(none, this);
}

ProcessGate::~ProcessGate() {
  ProcessGate* me = this;
  only_gate.compare_exchange_strong(me, nullptr);
}

ProcessGate* ProcessGate::current() {
  if (this_thread.gate != nullptr) return this_thread.gate;
  if (this_thread.turn != nullptr) return &this_thread.turn->process();
  return only_gate.load();
}

ProcessGateScope::ProcessGateScope(ProcessGate* gate) : before_(this_thread.gate) {
  if (gate != nullptr) this_thread.gate = gate;
}
ProcessGateScope::~ProcessGateScope() {
  this_thread.gate = before_;
}

namespace detail {

void check_may_block(const char* what, const char* instead) {
  if (this_thread.turn == nullptr || this_thread.turn->may_block()) return;
  throw BadConfig(std::string(what) + " in a light actor",
                  "a light actor shares its thread with thousands of others", instead);
}

std::function<void()> in_this_actor(std::function<void()> callback) {
  if (this_thread.turn == nullptr) {
    ProcessGate* gate = ProcessGate::current();
    if (gate == nullptr)
      return [callback = std::move(callback)]() mutable { run_in_turn({std::move(callback)}); };
    return [gate, callback = std::move(callback)]() mutable {
      gate->later(Duration::zero(), std::move(callback));
    };
  }
  return [run = this_thread.turn->executor(), callback = std::move(callback)]() mutable {
    run(std::move(callback));
  };
}

}  // namespace detail
}  // namespace troupe
