#include "runtime/host/actor_context.hpp"

#include <atomic>

#include "runtime/client/future.hpp"
#include "runtime/client/session.hpp"
#include "runtime/host/process_gate.hpp"

namespace troupe {
namespace {

thread_local ActorContext* turn = nullptr;
thread_local ProcessGate* scoped = nullptr;
/// A program is one process of a cluster; simulations, which run several, use scopes.
std::atomic<ProcessGate*> only_gate{nullptr};

}  // namespace

ActorContext* current_actor() {
  return turn;
}

ActorContext& this_actor() {
  if (turn == nullptr) {
    throw BadConfig("this_actor() was called outside of an actor",
                    "no actor's constructor or method runs in this thread",
                    "keep a reference to the ActorContext for threads of your own");
  }
  return *turn;
}

CurrentActorScope::CurrentActorScope(ActorContext* actor) : before_(std::exchange(turn, actor)) {}
CurrentActorScope::~CurrentActorScope() {
  turn = before_;
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
  if (scoped != nullptr) return scoped;
  if (turn != nullptr) return &turn->process();
  return only_gate.load();
}

ProcessGateScope::ProcessGateScope(ProcessGate* gate) : before_(scoped) {
  if (gate != nullptr) scoped = gate;
}
ProcessGateScope::~ProcessGateScope() {
  scoped = before_;
}

namespace detail {

void check_may_block(const char* what, const char* instead) {
  if (turn == nullptr || turn->may_block()) return;
  throw BadConfig(std::string(what) + " in a light actor",
                  "a light actor shares its thread with thousands of others", instead);
}

std::function<void()> in_this_actor(std::function<void()> callback) {
  if (turn == nullptr) {
    ProcessGate* gate = ProcessGate::current();
    if (gate == nullptr) return callback;
    return [gate, callback = std::move(callback)]() mutable { gate->later(std::move(callback)); };
  }
  return [run = turn->executor(), callback = std::move(callback)]() mutable { run(std::move(callback)); };
}

}  // namespace detail
}  // namespace troupe
