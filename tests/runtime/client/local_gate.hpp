/// A ProcessGate whose actors live in it and take their turn in the calling thread: enough of a process to
/// test sessions, handles and futures without one.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/core/fd.hpp"
#include "runtime/host/actor_context.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/host/registry.hpp"
#include "runtime/host/task_frames.hpp"

namespace troupe::testing {

class LocalGate : public ProcessGate {
 public:
  explicit LocalGate(std::uint64_t process = 2) {
    config_.node = {1}, config_.process = {process}, config_.job = {7};
  }

  const ProcessConfig& config() const override { return config_; }

  std::shared_ptr<CallState> call(const ActorAddress& to, std::uint64_t method, CallBody args,
                                  bool one_way) override {
    ++calls;
    last_args = args.bytes.size();
    auto state = one_way ? nullptr : std::make_shared<CallState>(nullptr);
    Responder responder = one_way ? Responder() : Responder(state);
    const auto at = actors_.find(to.actor);
    if (at == actors_.end()) return state;  // no answer for now: the responder fails it
    const CurrentActorScope scope(&at->second->context);
    Registry::instance().invoke(method, *at->second->object, args.bytes, std::move(responder));
    return state;
  }
  void reply(ProcessAddress, std::uint64_t, const Outcome& outcome, wire::Kept) override {
    last_reply = outcome;
  }

  std::shared_ptr<CallState> spawn(ActorSpawn spawn) override {
    last_spawn = spawn;
    ++spawns;
    auto state = std::make_shared<CallState>(nullptr);
    if (names_.contains(spawn.name)) {
      state->resolve(
          ErrorInfo{ErrorCode::kRefused, "cannot spawn", "the name " + spawn.name + " is taken", ""});
      return state;
    }
    if (!answers_spawns) {
      state->set_on_cancel([this](Duration) { ++cancelled; });
      return state;
    }
    const ActorAddress at{config_.node, config_.process, {next_actor_++}};
    auto actor = std::make_unique<Actor>(*this, at);
    const CurrentActorScope scope(&actor->context);
    auto object = Registry::instance().make(spawn.constructor, spawn.args);
    if (!object) {
      state->resolve(object.error());
      return state;
    }
    actor->object = *std::move(object);
    if (!spawn.name.empty()) names_[spawn.name] = at;
    actors_.emplace(at.actor, std::move(actor));
    state->resolve(wire::encode(at));
    return state;
  }
  void kill(const ActorAddress& actor, std::string) override { actors_.erase(actor.actor); }
  void watch_leaving(const ActorAddress&, OnLeaving) override {}
  void monitor(const ActorAddress&, OnDeath callback) override { callback({"it is a test", false}); }
  std::shared_ptr<CallState> find(std::string name) override {
    auto state = std::make_shared<CallState>(nullptr);
    const auto at = names_.find(name);
    if (at != names_.end() && hides_names-- <= 0) {
      state->resolve(wire::encode(at->second));
    } else {
      state->resolve(ErrorInfo{ErrorCode::kUnavailable, "no actor '" + name + "'", "", ""});
    }
    return state;
  }
  std::shared_ptr<CallState> nodes() override { return std::make_shared<CallState>(nullptr); }
  void later(Duration delay, std::function<void()> work) override {
    if (delay != Duration::zero()) return delayed.push_back(std::move(work));
    work();
  }
  Result<SharedMemory> open_region(const std::string&, std::size_t, const std::string&, bool) override {
    return ErrorInfo{ErrorCode::kIo, "no memory here", "", ""};
  }
  void drop_region(const std::string&) override {}

  std::vector<std::function<void()>> delayed;  ///< that the test may call
  std::size_t living() const { return actors_.size(); }
  int calls = 0;
  int spawns = 0;
  int hides_names = 0;  ///< so many looks find none
  int cancelled = 0;
  std::size_t last_args = 0;
  bool answers_spawns = true;
  ActorSpawn last_spawn;
  Outcome last_reply{wire::Bytes{}};

 private:
  class Context final : public ActorContext {
   public:
    Context(LocalGate& gate, ActorAddress address) : gate_(gate), address_(address) {}
    ActorAddress address() const override { return address_; }
    ProcessGate& process() const override { return gate_; }
    bool may_block() const override { return false; }
    const std::string* ended() const override { return nullptr; }
    Executor executor() override {
      return [](std::function<void()> work) { work(); };
    }
    void run(std::function<void()> work) override { work(); }
    void run_after(Duration, std::function<void()>) override {}
    void stop(std::string) override {}
    detail::TaskFrames& tasks() override { return tasks_; }

   private:
    detail::TaskFrames tasks_;
    LocalGate& gate_;
    const ActorAddress address_;
  };
  struct Actor {
    Actor(LocalGate& gate, ActorAddress at) : context(gate, at) {}
    Context context;
    std::unique_ptr<ActorObject> object;
  };

  ProcessConfig config_;
  std::uint64_t next_actor_ = 100;
  std::map<ActorId, std::unique_ptr<Actor>> actors_;
  std::map<std::string, ActorAddress> names_;
};

}  // namespace troupe::testing
