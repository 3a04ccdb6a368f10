#include "runtime/host/hosted_actor.hpp"

#include "runtime/client/session.hpp"
#include "runtime/core/log.hpp"

namespace troupe {
namespace {

thread_local ActorContext* current = nullptr;

/// The CAF side. CAF gives it one turn at a time, so its members need no lock.
class Host final : public caf::event_based_actor, public ActorContext {
 public:
  Host(caf::actor_config& config, Process& process, HostedActor::Spec spec, HostedActor::OnReady on_ready,
       HostedActor::OnEnd on_end)
      : caf::event_based_actor(config),
        process_(process),
        spec_(std::move(spec)),
        on_ready_(std::move(on_ready)),
        on_end_(std::move(on_end)) {}

  caf::behavior make_behavior() override {
    construct();
    return {[this](CallMessage& call) { on_call(call); }, [this](RunMessage& message) { on_run(message); },
            [this](StopMessage& message) { end(std::move(message.reason)); }};
  }

  ActorAddress address() const override { return spec_.address; }
  Process& process() const override { return process_; }
  bool may_block() const override { return spec_.isolated; }
  Executor executor() override {
    return [me = caf::actor(this)](std::function<void()> work) {
      caf::anon_send(me, RunMessage{std::move(work)});
    };
  }
  void run(std::function<void()> work) override {
    caf::anon_send(caf::actor(this), RunMessage{std::move(work)});
  }
  void run_after(Duration delay, std::function<void()> work) override {
    caf::delayed_anon_send(caf::actor(this), delay, RunMessage{std::move(work)});
  }
  void stop(std::string reason) override { caf::anon_send(caf::actor(this), StopMessage{std::move(reason)}); }

 private:
  void construct() {
    const CurrentActorScope scope(this);
    const auto* constructor = Registry::instance().constructor(spec_.constructor);
    if (constructor == nullptr) {
      return fail_start({ErrorCode::kRefused, "cannot construct an actor",
                         "this executable has no such class", "driver and workers must be the same build"});
    }
    auto object = constructor->make(spec_.args);
    if (!object) return fail_start(object.error());
    object_ = *std::move(object);
    spec_.args.clear();
    on_ready_({});
  }

  void fail_start(const ErrorInfo& error) {
    on_ready_(error);
    end(error.message());
  }

  void on_call(CallMessage& call) {
    if (object_ == nullptr) return;
    const auto* method = Registry::instance().method(call.method);
    if (method == nullptr) {
      return call.responder->fail({ErrorCode::kRefused, "cannot call a method",
                                   "this executable has no such method",
                                   "caller and actor must be the same build"});
    }
    const CurrentActorScope scope(this);
    method->invoke(object_->get(), call.args, std::move(*call.responder));
  }

  void on_run(RunMessage& message) {
    if (object_ == nullptr) return;
    const CurrentActorScope scope(this);
    try {
      message.work();
    } catch (...) {
      const auto error = describe_exception("a callback of an actor");
      log(LogLevel::kError, error.message());
      end(error.message());
    }
  }

  void end(std::string reason) {
    if (ended_) return;
    ended_ = true;
    {
      const CurrentActorScope scope(this);
      object_.reset();
    }
    on_end_(spec_.address, reason);
    quit();
  }

  Process& process_;
  HostedActor::Spec spec_;
  HostedActor::OnReady on_ready_;
  HostedActor::OnEnd on_end_;
  std::unique_ptr<ActorObject> object_;
  bool ended_ = false;
};

}  // namespace

ActorContext* current_actor() {
  return current;
}

ActorContext& this_actor() {
  if (current == nullptr) {
    throw BadConfig("this_actor() was called outside of an actor",
                    "no actor's constructor or method runs in this thread",
                    "keep a reference to the ActorContext for threads of your own");
  }
  return *current;
}

CurrentActorScope::CurrentActorScope(ActorContext* actor) : before_(std::exchange(current, actor)) {}
CurrentActorScope::~CurrentActorScope() {
  current = before_;
}

Session ActorContext::session() const {
  return Session(process());
}

namespace detail {

void check_may_block(const char* what) {
  if (current == nullptr || current->may_block()) return;
  throw BadConfig(std::string(what) + " in a light actor",
                  "a light actor shares its thread with thousands of others",
                  "use then(callback), return the Future, or spawn the actor with .isolated = true");
}

std::function<void()> in_this_actor(std::function<void()> callback) {
  if (current == nullptr) return callback;
  return [run = current->executor(), callback = std::move(callback)]() mutable { run(std::move(callback)); };
}

}  // namespace detail

std::shared_ptr<HostedActor> HostedActor::start(caf::actor_system& system, Process& process, Spec spec,
                                                OnReady on_ready, OnEnd on_end) {
  const bool isolated = spec.isolated;
  caf::actor actor = isolated ? system.spawn<Host, caf::detached>(process, std::move(spec),
                                                                  std::move(on_ready), std::move(on_end))
                              : system.spawn<Host, caf::lazy_init>(process, std::move(spec),
                                                                   std::move(on_ready), std::move(on_end));
  return std::shared_ptr<HostedActor>(new HostedActor(std::move(actor)));
}

void HostedActor::enqueue(caf::message message, caf::execution_unit* unit) {
  caf::actor_cast<caf::strong_actor_ptr>(actor_)->enqueue(nullptr, caf::make_message_id(), std::move(message),
                                                          unit);
}

void InlineUnit::run() {
  constexpr std::size_t kTurn = 64;  // messages an actor takes before the next one has its turn
  for (std::size_t at = 0; at < jobs_.size(); ++at) {
    caf::resumable* job = jobs_[at];
    switch (job->resume(this, kTurn)) {
      case caf::resumable::resume_later:
        jobs_.push_back(job);
        break;
      case caf::resumable::done:
      case caf::resumable::awaiting_message:
        caf::intrusive_ptr_release(job);
        break;
      case caf::resumable::shutdown_execution_unit:
        break;
    }
  }
  jobs_.clear();
}

}  // namespace troupe
