#include "runtime/tasks/tasks.hpp"

#include <algorithm>

#include "runtime/client/session.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/output_turn.hpp"
#include "runtime/core/stack.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/objects/objects.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe::tasks {
namespace {

using RunnerEntry = detail::ConstructorEntry<Runner, ProcessAddress, Demand>;

constexpr Duration kObjectsCome = std::chrono::minutes(10);
/// What waits for an argument here begins others of its frame, which may wait on top of its stack, so often.
constexpr Duration kBegunApart = std::chrono::seconds(1);

/// The worker is gone or out of reach, rather than the task's own code having thrown so.
bool is_lost(const ErrorInfo* why) {
  if (why == nullptr || !why->origin.empty()) return false;
  return why->code == ErrorCode::kActorDied || why->code == ErrorCode::kUnavailable;
}

/// The task's own code did.
bool has_thrown(const ErrorInfo* why) {
  return why != nullptr && !why->origin.empty() && why->code != ErrorCode::kCancelled;
}

/// Its worker skipped it (PushedTask::is_cancelled): what a task throws has an origin.
bool was_skipped(const ErrorInfo* why) {
  return why != nullptr && why->origin.empty() && why->code == ErrorCode::kCancelled;
}

/// Tasks that run in this thread, each while the one before it waits for it.
thread_local int depth = 0;

/// Of what comes by itself: other tasks bring nothing of it nearer.
bool wait_alone(CallState& state, Duration timeout) {
  const std::shared_ptr<Helper> helps(std::exchange(this_thread.helper, nullptr),
                                      [](Helper* helper) { this_thread.helper = helper; });
  return state.wait(timeout);
}

/// A task that waits for so long gives its CPUs to others: a process more would not pay for less.
constexpr Duration kGivesCpus = std::chrono::seconds(1);

/// A worker keeps this much of its stack for what a task calls, and for the error.
constexpr std::size_t kStackKept = std::size_t{1} << 20;

std::optional<ErrorInfo> why_too_deep(std::string_view task) {
  const StackRoom stack = stack_room();
  if (stack.all == 0 || stack.left >= std::min(kStackKept, stack.all / 4)) return std::nullopt;
  return ErrorInfo{ErrorCode::kLimit, "cannot run " + std::string(task),
                   "it would be number " + std::to_string(depth + 1) +
                       " of tasks that wait for one another in one thread, whose stack of " +
                       std::to_string(stack.all) + " bytes has room for no more",
                   "split the work more broadly and less deep, or raise ulimit -s where the nodes start"};
}

ErrorInfo not_submitted(ErrorInfo closed) {
  closed.what = "cannot submit a task";
  return closed;
}

}  // namespace

Runner::Runner(ProcessAddress owner, Demand demand) {
  ActorContext& self = this_actor();
  self.process().tasks()->serve(owner, demand);
  self.session().monitor(ActorAddress{owner.node, owner.process, {}}, [](const std::string& why) {
    this_actor().stop("the process that submitted its tasks is gone: " + why);
  });
}

/// A task that runs in this thread.
class Tasks::Frame final : public Helper {
 public:
  Frame(Tasks& tasks, std::uint64_t number)
      : tasks_(tasks), number_(number), before_(std::exchange(this_thread.helper, this)) {}
  ~Frame() override { this_thread.helper = before_; }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  std::uint64_t number() const override { return number_; }
  void help(const CallState& until, Instant deadline) override {
    if (!waits_since_) waits_since_ = tasks_.clock_.now();
    while (!until.ready()) {
      if (tasks_.clock_.now() - *waits_since_ >= kGivesCpus) tasks_.give_cpus_away();
      // One may have come while it was not waited for any more.
      const bool has_run = tasks_.run_own(number_);
      if (!has_run && tasks_.wait_for_own(number_, deadline)) continue;
      if (!has_run && !tasks_.run_own(number_)) return;
      waits_since_ = tasks_.clock_.now();
    }
  }
  void goes_on() override {
    waits_since_.reset();
    tasks_.take_cpus_back();
  }

 private:
  Tasks& tasks_;
  const std::uint64_t number_;
  Helper* const before_;
  std::optional<Instant> waits_since_;
};

// Submitting.

TaskNumber Tasks::add(TaskSpec spec, std::uint64_t frame, const std::shared_ptr<CallState>& answer,
                      LeasePool::Actions& actions) {
  const NodeId near = spec.args.kept.empty() ? NodeId() : gate_.objects()->mostly_on(spec.args.kept);
  const TaskNumber number =
      pool_.submitted({spec.demand, spec.retries, frame, spec.args.bytes.size() + spec.args.object_bytes,
                       spec.function, near},
                      clock_.now(), actions);
  pending_.emplace(number, Pending{std::move(spec), answer});
  answer->set_on_cancel([weak = weak_from_this(), number](Duration grace) {
    if (const auto self = weak.lock()) self->cancel(number, grace);
  });
  return number;
}

/// Without waiting for room.
std::pair<TaskNumber, std::shared_ptr<CallState>> Tasks::submit_ready(TaskSpec spec, std::uint64_t frame) {
  auto answer = std::make_shared<CallState>(waiter_);
  TaskNumber number = 0;
  LeasePool::Actions actions;
  std::optional<ErrorInfo> closed;
  {
    const std::lock_guard lock(mutex_);
    closed = closed_;
    if (!closed) number = add(std::move(spec), frame, answer, actions);
  }
  if (closed) answer->resolve(not_submitted(*std::move(closed)));
  carry_out(std::move(actions));
  return {number, std::move(answer)};
}

std::shared_ptr<CallState> Tasks::submit(TaskSpec spec) {
  if (auto later = submit_when_computed(spec)) return later;
  auto answer = std::make_shared<CallState>(waiter_);
  const bool may_wait = thread_may_wait();
  const Helper* frame = may_wait ? this_thread.helper : nullptr;
  LeasePool::Actions actions;
  std::optional<ErrorInfo> closed;
  {
    std::unique_lock lock(mutex_);
    while (!closed_ && !pool_.has_room()) {
      if (!may_wait) {
        throw LimitExceeded(
            {ErrorCode::kLimit, "cannot submit " + std::string(spec.name),
             std::to_string(pool_.queued()) +
                 " tasks of this process wait for workers, and this thread must not wait for room",
             "submit fewer at a time, or from the main program or a task, which are held back"});
      }
      if (frame != nullptr) {
        lock.unlock();
        run_here({std::move(spec), answer});
        return answer;
      }
      ++waiting_for_room_;
      room_.wait(lock);
      --waiting_for_room_;
    }
    closed = closed_;
    if (!closed) add(std::move(spec), frame == nullptr ? 0 : frame->number(), answer, actions);
  }
  if (closed) answer->resolve(not_submitted(*std::move(closed)));
  carry_out(std::move(actions));
  return answer;
}

std::optional<Tasks::Pending> Tasks::take(TaskNumber task) {
  auto found = pending_.extract(task);
  tell_of_room();
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

/// After whatever may have taken a task out of the queue: its end, or that a worker has it.
void Tasks::tell_of_room() {
  if (waiting_for_room_ != 0 && pool_.has_much_room()) room_.notify_all();
}

// Running.

ProcessAddress Tasks::owner_of_worker() const {
  const std::lock_guard lock(mutex_);
  return owner_;
}

bool Tasks::begin_pushed(const TaskAttempt& task) {
  const std::lock_guard lock(mutex_);
  cancelled_ = false;
  const bool begins = pushed_.begin(task);
  take_cpus_back();
  if (begins) begin_output_turn();
  return !begins;
}

void Tasks::end_pushed() {
  const std::lock_guard lock(mutex_);
  pushed_.end(clock_.now());
  cancelled_ = false;
}

void Tasks::asked_to_cancel(ProcessAddress from, wire::ByteView body, Responder responder) {
  const auto task = wire::decode<TaskNumber>(body);
  {
    const std::lock_guard lock(mutex_);
    if (!task || from != owner_)
      return responder.fail({ErrorCode::kRefused, "refused to cancel a task",
                             "a worker hears the process that leased it alone", ""});
    if (pushed_.cancel(*task)) cancelled_ = true;
  }
  responder.answer({});
}

void Tasks::asked_for_task(ProcessAddress from, wire::ByteView body, Responder responder) {
  const auto task = wire::decode<TaskAttempt>(body);
  bool never_begins = false;
  {
    const std::lock_guard lock(mutex_);
    if (!task || from != owner_)
      return responder.fail({ErrorCode::kRefused, "refused to give a task back",
                             "a worker hears the process that leased it alone", ""});
    never_begins = pushed_.take_back(*task);
  }
  responder.answer(wire::encode(never_begins));
}

void Tasks::run(const std::function<void()>& function) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++last_frame_;
  }
  const Frame frame(*this, number);
  function();
}

bool Tasks::run_own(std::uint64_t frame) {
  LeasePool::Actions actions;
  std::optional<Pending> task;
  {
    const std::lock_guard lock(mutex_);
    const LeasePool::Own own = pool_.take_own(frame, holds_, clock_.now(), actions);
    if (own.task != 0) task = take(own.task);
    if (task) task->spec.retries = own.retries;
  }
  carry_out(std::move(actions));
  if (!task) return false;
  take_cpus_back();
  run_here(*std::move(task));
  return true;
}

void Tasks::run_here(Pending task) {
  TaskSpec& spec = task.spec;
  for (; spec.retry_exceptions && spec.retries > 0 && !task.answer->ready(); --spec.retries) {
    const auto once = std::make_shared<CallState>(waiter_);
    once->passes_on_to(task.answer);
    run_once(spec, spec.args.bytes, Responder(once));
    // It has ended, but its answer waits until the owners of objects that it was given know of them.
    if (!once->wait(kObjectsCome)) {
      task.answer->resolve(ErrorInfo{ErrorCode::kTimeout, std::string(spec.name) + " gave no answer",
                                     "owners of objects that it was given said nothing for 10 minutes", ""});
      return;
    }
    if (!has_thrown(once->failure())) {
      task.answer->resolve_as(*once);
      return;
    }
    if (spec.entry == 0) continue;
    const std::lock_guard lock(lineage_mutex_);
    lineage_.retried(spec.entry);
  }
  wire::Bytes args = std::move(spec.args.bytes);
  run_once(spec, std::move(args), Responder(task.answer));
}

void Tasks::run_once(const TaskSpec& spec, wire::Bytes args, Responder responder) {
  if (auto why = why_too_deep(spec.name)) return responder.fail(*std::move(why));
  ++depth;
  const std::shared_ptr<void> leave(nullptr, [](void*) { --depth; });
  const AnsweringScope answering(responder);
  const auto* function = Registry::instance().method(spec.function);
  const auto invoke = [&](Responder to) { function->invoke(nullptr, args, std::move(to)); };
  if (spec.args.kept.empty()) return invoke(std::move(responder));
  const auto references = gate_.objects()->references(args);
  if (!references) return responder.fail(references.error());
  const auto come = std::make_shared<CallState>(waiter_);
  (*references)->when_ready([come] { come->resolve(wire::Bytes{}); });
  if (!wait_alone(*come, kBegunApart) && !come->wait(kObjectsCome))
    return responder.fail({ErrorCode::kTimeout, "an object of a task did not come", "within 10 minutes", ""});
  (*references)->invoke(std::move(responder), invoke);
}

void Tasks::cancel(TaskNumber number, Duration grace) {
  LeasePool::Actions actions;
  std::optional<Pending> dropped;  // after the lock
  {
    const std::lock_guard lock(mutex_);
    if (pool_.cancel(number, grace, clock_.now(), actions)) dropped = take(number);
  }
  carry_out(std::move(actions));
}

// What the pool decides.

void Tasks::carry_out(LeasePool::Actions actions) {
  const NoWaitScope no_wait;
  for (const auto& action : actions) std::visit([this](const auto& a) { act(a); }, action);
}

void Tasks::act(const LeasePool::AskLease& ask) {
  ActorSpawn spawn;
  spawn.constructor = RunnerEntry::kId;
  spawn.args =
      detail::encode_constructor(wire::kUnbounded, RunnerEntry::kClass, gate_.address(), ask.demand).bytes;
  spawn.type = cluster::kWorkerOfTasks;
  spawn.label = "task";
  spawn.cpu_e4 = ask.demand.cpu_e4;
  spawn.gpu_e4 = ask.demand.gpu_e4;
  spawn.other = ask.demand.other;
  spawn.isolated = true;
  spawn.node = ask.demand.node;
  spawn.group = ask.demand.group;
  spawn.bundle = ask.demand.bundle;
  (void)&RunnerEntry::registered;
  const auto asked = gate_.spawn(std::move(spawn));
  {
    const std::lock_guard lock(mutex_);
    workers_[ask.lease].ask = asked;
  }
  asked->on_ready([weak = weak_from_this(), asked, lease = ask.lease] {
    if (const auto self = weak.lock()) self->lease_answered(lease, asked->outcome());
  });
}

void Tasks::lease_answered(LeaseNumber lease, const Outcome& outcome) {
  LeasePool::Actions actions;
  {
    const std::lock_guard lock(mutex_);
    const auto at = workers_.find(lease);
    if (at == workers_.end()) return;
    auto address =
        outcome.ok() ? wire::decode<ActorAddress>(*outcome) : Result<ActorAddress>(outcome.error());
    at->second.ask = nullptr;
    if (address) {
      at->second.actor = *address;
      pool_.granted(lease, clock_.now(), actions, address->node);
    } else {
      workers_.erase(at);
      pool_.refused(lease, address.error(), clock_.now(), actions);
    }
  }
  carry_out(std::move(actions));
  if (!outcome.ok()) return;
  if (const auto worker = wire::decode<ActorAddress>(*outcome)) watch_leaving(lease, *worker);
}

void Tasks::watch_leaving(LeaseNumber lease, const ActorAddress& worker) {
  gate_.watch_leaving(worker, [weak = weak_from_this(), lease](const Leaving& leaving) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    LeasePool::Actions actions;
    {
      const std::lock_guard lock(self->mutex_);
      const Instant now = self->clock_.now();
      if (leaving.for_others) {
        self->pool_.wanted(lease, leaving.reason, now, actions);
      } else {
        self->pool_.leaves(lease, leaving.stays, now, actions);
      }
    }
    self->carry_out(std::move(actions));
  });
}

void Tasks::act(const LeasePool::CancelAsk& cancel) {
  std::shared_ptr<CallState> ask;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = workers_.find(cancel.lease); at != workers_.end()) ask = at->second.ask;
  }
  if (ask != nullptr) ask->cancel({ErrorCode::kUnavailable, "a worker was not started", cancel.reason, ""});
}

void Tasks::act(const LeasePool::ReturnLease& back) {
  ActorAddress actor;
  {
    const std::lock_guard lock(mutex_);
    auto found = workers_.extract(back.lease);
    if (found.empty()) return;
    actor = found.mapped().actor;
  }
  gate_.kill(actor, "its lease ended: " + back.reason);
}

void Tasks::act(const LeasePool::Push& push) {
  ActorAddress to;
  std::uint64_t function = 0;
  bool has_results = false;
  std::shared_ptr<CallState> answer;
  CallBody args;
  {
    const std::lock_guard lock(mutex_);
    tell_of_room();
    const auto worker = workers_.find(push.lease);
    const auto task = pending_.find(push.task);
    if (worker == workers_.end() || task == pending_.end()) return;  // the session ends
    to = worker->second.actor;
    function = task->second.spec.function;
    has_results = task->second.spec.results > 0;
    answer = task->second.answer;
    const CallBody& given = task->second.spec.args;
    args.kept = given.kept;
    args.bytes.reserve(kAttemptBytes + given.bytes.size());
    append(args.bytes, {push.task, push.attempt});
    args.bytes.insert(args.bytes.end(), given.bytes.begin(), given.bytes.end());
  }
  const auto called = gate_.call(to, function, std::move(args), false);
  if (has_results) {
    return called->on_ready([weak = weak_from_this(), called, task = push.task, attempt = push.attempt] {
      if (const auto self = weak.lock()) self->keep_results(task, attempt, called->outcome());
    });
  }
  called->passes_on_to(answer);
  called->watch(this, [weak = weak_from_this(), called, task = push.task, attempt = push.attempt] {
    if (const auto self = weak.lock()) self->task_answered(task, attempt, *called);
  });
}

bool Tasks::task_answered(TaskNumber number, std::uint32_t attempt, Outcome outcome) {
  CallState answer(nullptr);
  answer.resolve(std::move(outcome));
  return task_answered(number, attempt, answer);
}

bool Tasks::task_answered(TaskNumber number, std::uint32_t attempt, CallState& answer) {
  const ErrorInfo* why = answer.failure();
  LeasePool::Actions actions;
  std::optional<Pending> task;
  {
    const std::lock_guard lock(mutex_);
    if (is_lost(why)) {
      pool_.lost(number, attempt, *why, clock_.now(), actions);
    } else {
      // If nobody cancelled it, its worker was asked for this attempt.
      if (was_skipped(why)) pool_.taken_back(number, attempt, clock_.now(), actions);
      const bool again = tries_again(number, why) && pool_.threw(number, attempt, clock_.now(), actions);
      if (!again && pool_.ended(number, attempt, clock_.now(), actions)) task = take(number);
    }
  }
  carry_out(std::move(actions));
  if (task) task->answer->resolve_as(answer);
  return task.has_value();
}

bool Tasks::tries_again(TaskNumber number, const ErrorInfo* why) const {
  const auto at = pending_.find(number);
  return at != pending_.end() && at->second.spec.retry_exceptions && has_thrown(why);
}

void Tasks::act(const LeasePool::TakeBack& take) {
  ActorAddress worker;
  {
    const std::lock_guard lock(mutex_);
    const auto at = workers_.find(take.lease);
    if (at == workers_.end()) return;
    worker = at->second.actor;
  }
  const auto asked = gate_.call({worker.node, worker.process, {}}, kTakeTaskBack,
                                wire::encode(TaskAttempt{take.task, take.attempt}), false);
  asked->on_ready([weak = weak_from_this(), asked, task = take.task, attempt = take.attempt] {
    const auto self = weak.lock();
    if (self == nullptr || !asked->outcome().ok()) return;
    const auto is_back = wire::decode<bool>(*asked->outcome());
    if (!is_back || !*is_back) return;
    LeasePool::Actions actions;
    {
      const std::lock_guard lock(self->mutex_);
      self->pool_.taken_back(task, attempt, self->clock_.now(), actions);
    }
    self->carry_out(std::move(actions));
  });
}

void Tasks::act(const LeasePool::Interrupt& interrupt) {
  ActorAddress worker;
  {
    const std::lock_guard lock(mutex_);
    const auto at = workers_.find(interrupt.lease);
    if (at == workers_.end()) return;
    worker = at->second.actor;
  }
  gate_.call({worker.node, worker.process, {}}, kCancelTask, wire::encode(interrupt.task), false);
}

void Tasks::act(const LeasePool::Retry& retry) {
  Lineage::Number entry = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = pending_.find(retry.task); at != pending_.end()) entry = at->second.spec.entry;
  }
  if (entry == 0) return;
  const std::lock_guard lock(lineage_mutex_);
  lineage_.retried(entry);
}

void Tasks::act(const LeasePool::Fail& fail) {
  std::optional<Pending> task;
  {
    const std::lock_guard lock(mutex_);
    task = take(fail.task);
  }
  if (!task) return;
  ErrorInfo why = fail.error;
  why.what = std::string(task->spec.name) + ": " + why.what;
  task->answer->resolve(std::move(why));
}

void Tasks::act(const LeasePool::WakeAt& wake) {
  const Duration delay = std::max<Duration>(wake.at - clock_.now(), std::chrono::milliseconds(1));
  gate_.later(delay, [weak = weak_from_this(), number = wake.number] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    LeasePool::Actions actions;
    {
      const std::lock_guard lock(self->mutex_);
      self->pool_.tick(number, self->clock_.now(), actions);
    }
    self->carry_out(std::move(actions));
  });
}

// Ends.

void Tasks::lose(const std::function<bool(ProcessAddress)>& is_down, LeasePool::Begun begun,
                 const std::string& reason) {
  LeasePool::Actions actions;
  {
    const std::lock_guard lock(mutex_);
    std::vector<LeaseNumber> lost;
    for (const auto& [lease, worker] : workers_) {
      if (worker.ask == nullptr && is_down(worker.actor.home())) lost.push_back(lease);
    }
    for (const LeaseNumber lease : lost)
      pool_.lease_lost(lease, begun, {ErrorCode::kActorDied, "its worker is gone", reason, ""}, clock_.now(),
                       actions);
  }
  carry_out(std::move(actions));
}

void Tasks::process_down(ProcessAddress process, const std::string& reason) {
  lose([process](ProcessAddress p) { return p == process; }, LeasePool::Begun::kOldest, reason);
}

void Tasks::node_down(NodeId node, const std::string& reason) {
  lose([node](ProcessAddress p) { return p.node == node; }, LeasePool::Begun::kAll, reason);
}

void Tasks::close(const ErrorInfo& why) {
  LeasePool::Actions actions;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, why)) return;
    pool_.close(why, actions);
    room_.notify_all();
  }
  carry_out(std::move(actions));
  fail_recipes(why);
}

Tasks::Counts Tasks::counts() const {
  std::size_t entries = 0;
  {
    const std::lock_guard lock(lineage_mutex_);
    entries = lineage_.size();
  }
  const std::lock_guard lock(mutex_);
  return {pool_.tasks(), pool_.queued(), pool_.leases(), entries, waits_};
}

}  // namespace troupe::tasks
