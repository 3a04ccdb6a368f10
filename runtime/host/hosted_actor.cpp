#include "runtime/host/hosted_actor.hpp"

#include <atomic>
#include <csignal>
#include <deque>
#include <optional>
#include <set>
#include <unordered_map>

#include "runtime/core/escape.hpp"
#include "runtime/core/fork_guard.hpp"
#include "runtime/core/log.hpp"
#include "runtime/host/held_answers.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/host/method_threads.hpp"
#include "runtime/host/task_frames.hpp"
#include "runtime/host/turn.hpp"
#include "runtime/objects/objects.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe {
namespace {

/// A state up to this size is encoded ahead: that takes some 20 microseconds.
constexpr std::size_t kMostPreparedBytes = std::size_t{64} << 10;

/// An isolated actor's thread is started by one that blocks all signals; the user's code wants them as in
/// main.
void unblock_signals() {
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

/// The CAF side. CAF gives it one turn at a time, so its members need no lock.
class Host final : public caf::event_based_actor, public ActorContext {
  template <class Message>
  auto turn(void (Host::*on_message)(Message&)) {
    return [this, on_message](Message& message) {
      const Turn turn(ctrl());
      (this->*on_message)(message);
    };
  }

 public:
  Host(caf::actor_config& config, ActorHome& home, ActorStart start, OnActorReady on_ready, OnActorEnd on_end)
      : caf::event_based_actor(config),
        home_(home),
        address_(start.address),
        isolated_(start.isolated),
        constructor_(start.constructor),
        args_(std::move(start.args)),
        on_ready_(std::move(on_ready)),
        on_end_(std::move(on_end)),
        keeper_(std::move(start.keeper)),
        threads_(start.max_concurrency > 1
                     ? std::make_unique<MethodThreads>(static_cast<std::size_t>(start.max_concurrency))
                     : nullptr) {
    hand_over(ctrl());
  }
  ~Host() override { Turn last(ctrl()); }

  caf::behavior make_behavior() override {
    return {turn(&Host::on_start),  turn(&Host::on_call), turn(&Host::on_run),
            turn(&Host::on_resume), turn(&Host::on_turn), turn(&Host::on_stop)};
  }

  /// Drops the calls that it did not come to: their callers hear why it ended.
  bool cleanup(caf::error&& why, caf::execution_unit* unit) override {
    const CurrentActorScope scope(this);
    return caf::event_based_actor::cleanup(std::move(why), unit);
  }

  /// One that may wait has no turn in a thread that receives, also where it has no thread of its own.
  void enqueue(caf::mailbox_element_ptr message, caf::execution_unit* unit) override {
    caf::event_based_actor::enqueue(std::move(message), isolated_ ? nullptr : unit);
  }

  ActorAddress address() const override { return address_; }
  ProcessGate& process() const override { return home_.gate(); }
  bool may_block() const override { return isolated_; }
  bool runs_one_at_a_time() const override { return threads_ == nullptr; }
  const std::string* ended() const override { return ended_ ? &*ended_ : nullptr; }
  Executor executor() override {
    return [weak = weak_handle()](std::function<void()> work) {
      if (const auto me = weak.lock())
        troupe::enqueue(me, caf::make_message(RunMessage{std::move(work)}), nullptr);
    };
  }
  void run(std::function<void()> work) override { executor()(std::move(work)); }
  void run_after(Duration delay, std::function<void()> work) override {
    enqueue_after(handle(), delay, RunMessage{std::move(work)});
  }
  void stop(std::string reason) override {
    troupe::enqueue(handle(), caf::make_message(StopMessage{bounded_text(std::move(reason))}), nullptr);
  }
  detail::TaskFrames& tasks() override {
    if (threads_ != nullptr)
      throw BadConfig("cannot wait by co_await", "several threads run this actor's methods (max_concurrency)",
                      "return the value: a method of such an actor may get() and block");
    return tasks_;
  }

 private:
  caf::strong_actor_ptr handle() { return caf::actor_cast<caf::strong_actor_ptr>(this); }
  /// For what may never come: the end of a process waits until its isolated actors are destroyed.
  caf::weak_actor_ptr weak_handle() { return caf::actor_cast<caf::weak_actor_ptr>(handle()); }

  void on_start(StartMessage&) {
    if (ended_) return;
    if (isolated_) unblock_signals();
    const CurrentActorScope scope(this);
    const Registry& registry = Registry::instance();
    const bool is_far = registry.constructor(constructor_ ^ kArgumentsInObject) != nullptr;
    const std::uint64_t number = is_far ? constructor_ ^ kArgumentsInObject : constructor_;
    const Registry::Constructor* constructor = registry.constructor(number);
    if (constructor == nullptr || !constructor->saves) keeper_ = nullptr;
    if (keeper_ != nullptr && state_ == nullptr) state_ = keeper_->last();
    if (is_far && !fetch_arguments()) return;
    if (state_ != nullptr && !has_come(*state_)) return;
    objects::BorrowScope borrows;
    auto object = registry.make(number, is_far ? fetched_->bytes->view() : wire::ByteView(args_));
    if (!object) return fail_start(object.error());
    if (const auto loaded = load_last_state(**object); !loaded) return fail_start(loaded.error());
    object_ = *std::move(object);
    wire::Bytes().swap(args_);
    fetched_.reset();
    // The spawner may drop what it gave once it hears of this.
    borrows.when_known([ready = std::exchange(on_ready_, nullptr)] { ready({}); });
  }

  /// False: it is started again when they are here, or has failed.
  bool fetch_arguments() {
    if (fetched_ == nullptr) {
      const auto name = wire::decode<objects::ObjectName>(args_);
      const auto objects = process().objects();
      if (!name || objects == nullptr) {
        fail_start({ErrorCode::kBadInput, "cannot construct an actor", "its arguments do not decode", ""});
        return false;
      }
      fetched_ = objects->fetch(*name);
    }
    return has_come(fetched_->done);
  }

  /// As fetch_arguments().
  bool has_come(CallState& what) {
    if (!what.ready()) {
      what.on_ready([weak = weak_handle()] {
        if (const auto me = weak.lock()) troupe::enqueue(me, caf::make_message(StartMessage{}), nullptr);
      });
      return false;
    }
    if (!what.outcome().ok()) fail_start(what.outcome().error());
    return what.outcome().ok();
  }

  Result<void> load_last_state(ActorObject& object) {
    const auto fetched = std::exchange(state_, nullptr);
    if (keeper_ == nullptr) return {};
    const auto state = wire::decode<std::optional<wire::Bytes>>(*fetched->outcome());
    if (!state) return state.error();
    if (!*state) return {};
    const std::string where = std::string(object.class_name()) + "::load";
    try {
      const ForkScope fork_scope(where);
      object.load(**state);
      return {};
    } catch (...) {
      return describe_exception(where);
    }
  }

  void fail_start(const ErrorInfo& error) {
    std::exchange(on_ready_, nullptr)(error);
    end(error.message());
  }

  void on_call(CallMessage& message) {
    std::shared_ptr<IncomingCall> call = std::move(message.call);
    if (object_ == nullptr) return;  // dropped: its responder says that the actor has ended
    if (stop_)
      return call->responder.fail({ErrorCode::kActorDied, "the actor is gone",
                                   "it ended before it answered: " + *stop_,
                                   "spawn it again, or monitor it to be told"});
    // A caller that does not read its answers gets no further ones made; calls of one caller keep their
    // order.
    const auto at = waiting_.find(call->from);
    if (at != waiting_.end()) return at->second.push_back(std::move(call));
    if (!must_wait(*call)) return carry_out(std::move(call));
    wait_for(*waiting_[call->from].emplace_back(std::move(call)));
  }

  bool must_wait(const IncomingCall& call) const {
    return home_.is_congested(call.from, held_.bytes_for(call.from)) ||
           (call.references != nullptr && !call.references->ready());
  }

  void carry_out(std::shared_ptr<IncomingCall> call) {
    if (threads_ == nullptr) return run_method(*call);
    threads_->run([this, call = std::move(call)] { run_method(*call); });
  }

  void run_method(IncomingCall& call) {
    const CurrentActorScope scope(this);
    if (keeper_ == nullptr) return run_method(call, std::move(call.responder));
    prepare_save();
    const auto answer = std::make_shared<CallState>(nullptr);
    call.responder.passes_on(*answer);
    const Registry::Method* method = Registry::instance().method(call.method);
    const bool changes = method == nullptr || !method->is_const;
    if (changes) ++changing_;
    auto hold = [this, answer, changes, from = call.from,
                 to = std::make_shared<Responder>(std::move(call.responder))] {
      if (changes || changing_ != 0) held_.changed();
      if (changes) --changing_;
      const std::size_t bytes = answer->outcome().ok() ? answer->outcome()->size() : 0;
      held_.add(from, wire::kHeaderBytes + bytes, [this, answer, to](const ErrorInfo* not_held) {
        if (not_held != nullptr) return to->fail(*not_held);
        auto give = [answer, to] { to->outcome(answer->outcome(), answer->refers_to()); };
        // A large one may have to wait for memory.
        const bool is_large = answer->outcome().ok() && answer->outcome()->size() > objects::kInlineBytes;
        if (!is_large || thread_may_wait()) return give();
        in_turn(handle(), std::move(give));
      });
      save();
    };
    run_method(call, Responder(answer));
    if (threads_ == nullptr && answer->ready()) return hold();
    answer->on_ready([weak = weak_handle(), hold = std::move(hold)] {
      if (const auto me = weak.lock()) in_turn(me, hold);
    });
  }

  void run_method(const IncomingCall& call, Responder responder) {
    const AnsweringScope answering(responder);
    const auto invoke = [&](Responder to) {
      Registry::instance().invoke(call.method, *object_, call.args, std::move(to));
    };
    if (call.references == nullptr) return invoke(std::move(responder));
    call.references->invoke(std::move(responder), invoke);
  }

  static void in_turn(const caf::strong_actor_ptr& me, std::function<void()> work) {
    troupe::enqueue(me, caf::make_message(TurnMessage{std::move(work)}), nullptr);
  }

  void save() {
    if (!held_.begin_save()) return;
    auto state = state_now();
    state ? keep(handle(), *std::move(state)) : saved(handle(), state.error());
  }

  /// Before a turn that may take long: answers that wait for the save after the one under way do not wait for
  /// that turn's end.
  void prepare_save() {
    if (threads_ != nullptr) return;  // methods take no turn
    save();  // the one under way may have ended, and the turn after it is behind this
    if (state_bytes_ > kMostPreparedBytes || !held_.wants_prepared()) return;
    auto state = state_now();
    if (state && !held_.prepare(*std::move(state))) save();
  }

  Result<wire::Bytes> state_now() {
    const std::string where = std::string(object_->class_name()) + "::save";
    try {
      const ForkScope fork_scope(where);
      auto state = object_->save();
      state_bytes_ = state.size();
      return state;
    } catch (...) {
      return describe_exception(where);
    }
  }

  /// A keeper that never answers keeps no actor that has ended, for which the end of its process waits.
  void keep(const caf::strong_actor_ptr& me, wire::Bytes state) {
    const auto kept = keeper_->keep(std::move(state));
    kept->on_ready([this, weak = caf::actor_cast<caf::weak_actor_ptr>(me), kept] {
      if (const auto lives = weak.lock()) saved(lives, kept->outcome());
    });
  }

  /// In whatever thread hears it: the actor's own may run one long method after another, and one of those may
  /// wait for who waits for these answers.
  void saved(const caf::strong_actor_ptr& me, const Outcome& how) {
    auto ended = held_.end_save();
    for (const auto& give : ended.leave) give(how.ok() ? nullptr : &how.error());
    if (ended.next) keep(me, *std::move(ended.next));
    in_turn(me, [this] {
      save();
      for (const ProcessAddress caller : std::exchange(held_back_, {})) take_up(caller);
      end_if_stopped();
    });
  }

  void end_if_stopped() {
    if (stop_ && held_.empty()) end(*std::exchange(stop_, std::nullopt));
  }

  void wait_for(const IncomingCall& call) {
    auto resume = [weak = weak_handle(), from = call.from] {
      if (const auto me = weak.lock()) troupe::enqueue(me, caf::make_message(ResumeMessage{from}), nullptr);
    };
    if (call.references != nullptr && !call.references->ready())
      return call.references->when_ready(std::move(resume));
    if (held_.bytes_for(call.from) != 0) {  // then until those have left
      held_back_.insert(call.from);
      return;
    }
    home_.when_drained(call.from, std::move(resume));
  }

  void on_resume(ResumeMessage& message) { take_up(message.caller); }

  void take_up(ProcessAddress caller) {
    for (auto at = waiting_.find(caller); at != waiting_.end(); at = waiting_.find(caller)) {
      auto& calls = at->second;
      if (must_wait(*calls.front())) return wait_for(*calls.front());
      auto call = std::move(calls.front());
      calls.pop_front();
      if (calls.empty()) waiting_.erase(at);
      carry_out(std::move(call));
    }
  }

  void on_run(RunMessage& message) {
    if (object_ == nullptr) return;
    const CurrentActorScope scope(this);
    if (keeper_ != nullptr) prepare_save();
    try {
      const ForkScope fork_scope("a callback of an actor");
      message.work();
    } catch (...) {
      const auto error = describe_exception("a callback of an actor");
      log(LogLevel::kError, error.message());
      return end(error.message());
    }
    if (keeper_ == nullptr) return;
    held_.changed();
    save();
  }

  void on_turn(TurnMessage& message) {
    if (object_ == nullptr) return;
    const CurrentActorScope scope(this);
    message.work();
  }

  void on_stop(StopMessage& message) {
    if (keeper_ == nullptr || object_ == nullptr || message.at_once)
      return end(std::move(stop_ ? *stop_ : message.reason));
    // Answers of what has run leave first.
    if (threads_ != nullptr) threads_->stop();
    stop_ = std::move(message.reason);
    in_turn(handle(), [this] { end_if_stopped(); });
  }

  void end(std::string reason) {
    if (ended_) return;
    std::deque<MethodThreads::Work> not_begun;
    if (threads_ != nullptr) not_begun = threads_->stop();  // what runs comes to its end
    ended_ = reason;
    {
      const CurrentActorScope scope(this);
      const ForkScope fork_scope("an actor's destructor");
      tasks_.clear();  // they refer to the object
      object_.reset();
      not_begun.clear();
      waiting_.clear();
      held_.clear();
    }
    on_end_(address_, reason);
    quit();
  }

  ActorHome& home_;
  const ActorAddress address_;
  const bool isolated_;
  const std::uint64_t constructor_;
  wire::Bytes args_;
  std::shared_ptr<objects::Fetch> fetched_;  ///< the arguments, where they came as an object
  OnActorReady on_ready_;
  OnActorEnd on_end_;
  std::unique_ptr<ActorObject> object_;
  std::shared_ptr<StateKeeper> keeper_;  ///< null: it does not save, or has no other life
  std::shared_ptr<CallState> state_;     ///< of the life before, while it starts
  HeldAnswers held_;                     ///< empty without a keeper
  std::set<ProcessAddress> held_back_;   ///< callers whose calls wait until answers to them have left held_
  std::size_t state_bytes_ = 0;          ///< of the object when it was encoded last
  /// Methods that may change the object and have no answer yet: others may tell of what those have changed.
  std::atomic<int> changing_{0};
  std::optional<std::string> stop_;               ///< it ends once they have left
  const std::unique_ptr<MethodThreads> threads_;  ///< null: methods run in its turns
  detail::TaskFrames tasks_;                      ///< empty before object_ goes
  /// Calls that wait for their callers to read answers, or for objects. Invariant: no queue is empty.
  std::unordered_map<ProcessAddress, std::deque<std::shared_ptr<IncomingCall>>> waiting_;
  std::optional<std::string> ended_;  ///< why
};

}  // namespace

caf::strong_actor_ptr host_actor(caf::actor_system& system, ActorHome& home, ActorStart start, bool threads,
                                 OnActorReady on_ready, OnActorEnd on_end) {
  const bool detached = start.isolated && threads;
  if (!detached) start.max_concurrency = 1;
  caf::actor actor = detached ? system.spawn<Host, caf::detached>(home, std::move(start), std::move(on_ready),
                                                                  std::move(on_end))
                              : system.spawn<Host, caf::lazy_init>(home, std::move(start),
                                                                   std::move(on_ready), std::move(on_end));
  return caf::actor_cast<caf::strong_actor_ptr>(std::move(actor));
}

void enqueue(const caf::strong_actor_ptr& actor, caf::message message, caf::execution_unit* unit) {
  hand_over(actor.get());
  actor->enqueue(nullptr, caf::make_message_id(), std::move(message), unit);
}

void enqueue_after(const caf::strong_actor_ptr& actor, Duration delay, RunMessage message) {
  auto element = caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(message));
  hand_over(actor.get());
  caf::actor_clock& clock = actor->home_system->clock();
  clock.schedule_message(clock.now() + delay, actor, std::move(element));
}

bool thread_may_wait() {
  return !NoWaitScope::marked() && (current_actor() == nullptr || current_actor()->may_block());
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
