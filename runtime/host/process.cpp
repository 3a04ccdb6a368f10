#include "runtime/host/process.hpp"

#include <climits>
#include <iterator>

#include "runtime/core/fork_guard.hpp"
#include "runtime/core/futex.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/thread_limit.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/host/socket_channel.hpp"
#include "runtime/host/turn.hpp"
#include "runtime/link/ring/ring_hub.hpp"
#include "runtime/objects/object_messages.hpp"

namespace troupe {
namespace {

constexpr Duration kActorsEnd = std::chrono::seconds(5);
/// And then those that wait for nothing any more.
constexpr Duration kActorsDrop = std::chrono::seconds(1);
/// A life of a driver that has its actors' threads: those that receive, and one to spare.
constexpr std::size_t kThreadsOfLife = 3;
/// Large answers lie in this process until their callers have them.
constexpr Duration kAnswersTaken = std::chrono::seconds(5);
constexpr const char* kEnded = "its process ended";
constexpr const char* kCallThere = "call in a new session";

ErrorInfo actor_died(std::string why) {
  return {ErrorCode::kActorDied, "the actor is gone", std::move(why),
          "spawn it again, or monitor it to be told"};
}
ErrorInfo link_broke(const std::string& why) {
  return {ErrorCode::kUnavailable, "a call has no answer",
          "the link to its node broke (" + why + "): it may or may not have run",
          "call again if that does no harm"};
}
ErrorInfo no_ring(const ErrorInfo& why) {
  return {ErrorCode::kUnavailable, "a call was not sent",
          "the memory to its process cannot be had: " + why.message(), "call again"};
}
ErrorInfo other_job() {
  return {ErrorCode::kRefused, "refused a frame", "it is of another job",
          "a job may call and end its own actors alone"};
}

/// Runs functions one after another, off the threads that receive.
caf::behavior callback_runner(caf::event_based_actor* self) {
  return {[self](const RunMessage& message) {
    const Turn turn(self->ctrl());
    const NoWaitScope no_wait;
    try {
      const ForkScope scope("a callback of then or monitor");
      message.work();
    } catch (...) {  // the next callback is another's
      log(LogLevel::kError, describe_exception("a callback of then or monitor").message());
    }
  }};
}

Outcome spawned(const ActorAddress& at) {
  return wire::encode(wire::SpawnAnswer{at});
}

ProcessFloor production(SocketLink link, std::shared_ptr<ActorThreads> actor_threads) {
  ProcessFloor floor;
  floor.actor_threads = std::move(actor_threads);
  floor.channel = std::make_unique<SocketChannel>(std::move(link));
  floor.make_rings = [](NodeId node, Rings::Handlers handlers) {
    return std::make_unique<RingHub>(node, Doorbell::create().value(), std::move(handlers));
  };
  floor.light_ids = SystemRandom().next();
  floor.spill_disk = std::make_shared<objects::SpillDisk>();
  floor.direct_connections = objects::tcp_connections();
  return floor;
}

}  // namespace

Process::Process(ProcessConfig config, SocketLink link, Handlers handlers,
                 std::shared_ptr<ActorThreads> actor_threads)
    : Process(std::move(config), production(std::move(link), std::move(actor_threads)), std::move(handlers)) {
}

Process::Process(ProcessConfig config, ProcessFloor floor, Handlers handlers)
    : config_(std::move(config)),
      handlers_(std::move(handlers)),
      threads_(floor.threads),
      light_ids_(floor.light_ids),
      has_own_actor_threads_(floor.actor_threads == nullptr),
      actor_threads_(has_own_actor_threads_ ? std::make_shared<ActorThreads>(threads_)
                                            : std::move(floor.actor_threads)),
      states_([this](ActorId actor) {
        monitor({{}, {}, actor}, [this, actor](const Death& death) {
          if (!death.restarts) states_.forget(actor);
        });
      }) {
  if (!has_own_actor_threads_) check_thread_limit(kThreadsOfLife).value();
  caf::actor_system& caf = actor_threads_->system();
  inline_unit_ = std::make_unique<InlineUnit>(caf);
  callback_runner_ = caf::actor_cast<caf::strong_actor_ptr>(caf.spawn(callback_runner));
  actors_ = std::make_unique<ActorTable>(caf, *this, threads_);
  node_ = std::make_unique<NodeLink>(address(), std::move(floor.channel));
  rings_ = floor.make_rings(
      config_.node,
      Rings::Handlers{[this](Message message) { on_message(std::move(message), inline_unit_.get()); },
                      [this] { inline_unit_->run(); },
                      [this](ProcessId peer) { routes_->ring_drained(peer); },
                      [this](ProcessId peer, const std::string& why) {
                        log(LogLevel::kError, "a ring is closed: " + why);
                        later(Duration::zero(), [this, peer, why] {
                          const ProcessAddress at{config_.node, peer};
                          routes_->process_down(at, "it broke the protocol: " + why);
                          fail_calls([at](ProcessAddress p) { return p == at; },
                                     actor_died("it broke the protocol: " + why));
                        });
                      }});
  routes_ = std::make_unique<Routes>(config_, *node_, *rings_, floor.limits,
                                     [this](ProcessId peer) { ask_for_ring(peer); });
  leases_ = std::make_unique<Leases>(config_, *node_);
  leaving_ = std::make_unique<LeavingActors>([this](std::function<void()> work) {
    later(Duration::zero(), [this, work = std::move(work)] {
      if (!ending_) work();
    });
  });
  objects_ = std::make_shared<objects::Objects>(
      *this, rings_.get(),
      [this](const std::string& key, std::uint64_t bytes, objects::Objects::OnRegion then) {
        lend_region(key, bytes, config_.label, false, std::move(then));
      },
      std::move(floor.direct_connections), std::move(floor.spill_disk), floor.object_limits);
  tasks_ = std::make_shared<tasks::Tasks>(*this, rings_.get(), [this](NodeId node, Leases::OnProcess then) {
    leases_->with_process(node, std::move(then));
  });
  tasks_->watch_objects();
  directory_ = make_directory();
  node_->start(
      rings_->take_doorbell(),
      {[this](Message message) { on_message(std::move(message), nullptr); }, [this] { routes_->flush_all(); },
       [this](const std::string& why) {
         tasks_->close(own_node_gone("a task has no answer", why, kSubmitThere));
       },
       [this](const std::string& why) { on_node_gone(why); }});
}

Process::~Process() {
  end();
  // Callbacks that still run may say `later`.
  if (has_own_actor_threads_) {
    actor_threads_->system().await_all_actors_done();
  } else {  // nobody else's end is waited for: its actors have ended, or its driver waits for them
    caf::scoped_actor(actor_threads_->system())->wait_for(caf::actor_cast<caf::actor>(callback_runner_));
  }
  callback_runner_ = nullptr;
  if (has_own_actor_threads_) actor_threads_->end();
}

void Process::end() {
  if (std::exchange(is_over_, true)) return;
  ending_ = true;
  tasks_->close({ErrorCode::kUnavailable, "a task has no answer", kEnded, "submit it in a new session"});
  if (threads_) objects_->wait_until_taken(kAnswersTaken);
  objects_->close();
  objects_->stop();
  actors_->stop_all(left_ == 0 ? kEnded : why_left_);
  run_turns();
  if (threads_) actors_->wait_until_empty(kActorsEnd);
  actors_->close(kEnded);  // what they have saved is not kept so far
  run_turns();
  if (threads_) actors_->wait_until_empty(kActorsDrop);
  left_ = 1;
  futex_wake(left_, INT_MAX);
  // The threads that receive end first; what actors still send goes nowhere, but to memory that is there.
  node_->stop();
  rings_->stop();
  // An answer's callbacks mostly hold it: what is not resolved is never given back. Routes close first: a
  // call that is tried again asks for another ring, and the node gives none.
  fail_all_calls({ErrorCode::kUnavailable, "a call was not sent", kEnded, kCallThere},
                 {ErrorCode::kUnavailable, "a call has no answer", kEnded, kCallThere});
  node_->give_up(kEnded);
  caf::anon_send_exit(caf::actor_cast<caf::actor>(callback_runner_), caf::exit_reason::user_shutdown);
  run_turns();
}

caf::scheduler::test_coordinator& Process::turns() {
  return dynamic_cast<caf::scheduler::test_coordinator&>(actor_threads_->system().scheduler());
}

void Process::run_turns() {
  if (!threads_) turns().run();
}

void Process::later(Duration delay, std::function<void()> work) {
  if (delay == Duration::zero())
    return enqueue(callback_runner_, caf::make_message(RunMessage{std::move(work)}), nullptr);
  enqueue_after(callback_runner_, delay, RunMessage{std::move(work)});
}

// Calls.

std::shared_ptr<CallState> Process::send_call(wire::FrameKind kind, const ActorAddress& to,
                                              std::uint64_t method, wire::ByteView body, std::uint8_t flags) {
  auto state = std::make_shared<CallState>(rings_.get());
  wire::FrameHeader header;
  header.kind = kind;
  header.flags = flags;
  header.to = to.home();
  header.from = address();
  header.job = config_.job;
  header.actor = to.actor;
  header.method = method;
  header.id = calls_.add({state, kind, to, wire::kHeaderBytes + body.size(), {}, method});
  if (auto sent = routes_->send(header, body); !sent) {
    if (calls_.take(header.id, header.to)) state->resolve(sent.error());
  }
  return state;
}

std::shared_ptr<CallState> Process::call(const ActorAddress& to, std::uint64_t method, CallBody args,
                                         bool one_way) {
  const bool refers = !args.kept.empty();
  if (to.home() == address()) {
    auto state = one_way ? nullptr : std::make_shared<CallState>(rings_.get());
    auto call = std::make_shared<IncomingCall>(*this, address(), method, std::move(args.bytes),
                                               one_way ? Responder() : Responder(state, this), 0);
    if (refers) {
      state->keep(std::move(args.kept));
      call->references = objects_->references(call->args).value();
    }
    actors_->deliver(to.actor, std::move(call), nullptr);
    return state;
  }
  if (is_restartable(to.actor)) {
    auto state = one_way ? nullptr : std::make_shared<CallState>(rings_.get());
    if (refers) state->keep(args.kept);
    directory_->call(std::make_shared<MovingCall>(MovingCall{state, to.actor, method, std::move(args)}));
    return state;
  }
  if (!one_way) {
    auto state = send_call(wire::FrameKind::kCall, to, method, args.bytes,
                           refers ? wire::kFlagReferences : std::uint8_t{0});
    state->keep(std::move(args.kept));
    return state;
  }
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCall;
  header.flags = wire::kFlagOneWay;
  header.to = to.home();
  header.from = address();
  header.job = config_.job;
  header.actor = to.actor;
  header.method = method;
  if (auto sent = routes_->send(header, args.bytes); !sent) log(LogLevel::kDebug, sent.error().message());
  return nullptr;
}

void Process::send_reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome, std::uint8_t flags) {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kReply;
  header.flags = outcome.ok() ? flags : wire::kFlagError;
  header.to = to;
  header.from = address();
  header.job = config_.job;
  header.id = call;
  const auto sent =
      outcome.ok() ? routes_->send(header, *outcome) : routes_->send(header, wire::encode(outcome.error()));
  if (!sent) log(LogLevel::kDebug, "nobody waits for an answer: " + sent.error().message());
}

void Process::ask_for_ring(ProcessId peer) {
  const auto asked = node_->ask([&](std::uint64_t request) { return wire::RingAsk{request, peer}; }, nullptr);
  asked.state->on_ready([this, peer, state = asked.state] {
    if (state->outcome().ok()) return;  // its memory came with an offer
    const ProcessAddress at{config_.node, peer};
    const ErrorInfo why = state->outcome().error();
    routes_->no_ring(peer, why);
    fail_calls([at](ProcessAddress p) { return p == at; },
               why.code == ErrorCode::kActorDied ? actor_died(why.why) : no_ring(why));
  });
}

// What comes in.

void Process::on_message(Message message, caf::execution_unit* unit) {
  const wire::FrameHeader& header = message.header;
  if (header.kind == wire::FrameKind::kControl) return on_control(std::move(message));
  if (header.kind == wire::FrameKind::kCredit && header.flags == 0) return routes_->credit(header);
  const std::size_t bytes = wire::kHeaderBytes + message.body.size();
  if (unit == nullptr && header.from.process) routes_->took_up(header.from, bytes);
  if (header.kind == wire::FrameKind::kReply) return on_reply(std::move(message));
  if (header.job != config_.job) {
    if (wire::wants_reply(header)) send_reply(header.from, header.id, other_job());
    return;
  }
  switch (header.kind) {
    case wire::FrameKind::kCall:
      return on_call(std::move(message), unit, bytes);
    case wire::FrameKind::kSpawn:
      return on_spawn(std::move(message), unit);
    case wire::FrameKind::kMonitor:
      return actors_->monitor(header.actor, Responder(this, header.from, header.id));
    case wire::FrameKind::kStop:
      actors_->stop(header.actor, wire::decode<std::string>(message.body).value_or("it was killed"));
      return;
    case wire::FrameKind::kCredit:
      return routes_->credit(header);
    default:
      return;
  }
}

void Process::on_call(Message message, caf::execution_unit* unit, std::size_t bytes) {
  const wire::FrameHeader& header = message.header;
  const bool one_way = (header.flags & wire::kFlagOneWay) != 0;
  if (!header.actor) {
    Responder plain = one_way ? Responder() : answer_as_it_is(header);
    if (header.method == tasks::kCancelTask)
      return tasks_->asked_to_cancel(header.from, message.body, std::move(plain));
    if (header.method == tasks::kTakeTaskBack)
      return tasks_->asked_for_task(header.from, message.body, std::move(plain));
    if (header.method == kKeepState || header.method == kLastState)
      return plain.outcome(states_.asked(header.method, message.body));
    return objects_->asked(header.from, header.method, message.body, std::move(plain));
  }
  Responder responder = one_way ? Responder() : Responder(this, header.from, header.id);
  std::shared_ptr<const objects::References> references;
  if ((header.flags & wire::kFlagReferences) != 0) {
    // A task that comes before its arguments goes back: its worker is for one that can begin.
    const bool waits = !tasks_->serves() || is_light(header.actor);
    auto found = objects_->references(message.body, waits);
    if (!found) return responder.fail(found.error());
    references = *std::move(found);
  }
  auto call = std::make_shared<IncomingCall>(*this, header.from, header.method, std::move(message.body),
                                             std::move(responder), one_way ? bytes : 0);
  call->references = std::move(references);
  actors_->deliver(header.actor, std::move(call), unit);
}

void Process::on_spawn(Message message, caf::execution_unit* unit) {
  const wire::FrameHeader& header = message.header;
  auto responder = std::make_shared<Responder>(this, header.from, header.id);
  if (!is_light(header.actor)) {
    return responder->fail(
        {ErrorCode::kRefused, "refused to construct an actor", "its id is not of a light actor", ""});
  }
  actors_->start(
      {{config_.node, config_.process, header.actor}, header.method, std::move(message.body), false},
      [responder](Result<void> started) {
        if (started) {
          responder->answer({});
        } else {
          responder->fail(started.error());
        }
      },
      nullptr, unit);
}

void Process::on_control(Message message) {
  auto decoded = wire::decode_control(message.header, message.body);
  if (!decoded) return log(LogLevel::kError, decoded.error().message());
  wire::Control& control = *decoded;
  if (auto* offer = std::get_if<wire::RingOffer>(&control)) {
    const auto attached = routes_->attach(*offer, std::move(message.fds));
    if (!attached) log(LogLevel::kError, attached.error().message());
    return;
  }
  if (auto* start = std::get_if<wire::StartActorHere>(&control)) return handle(std::move(*start));
  if (auto* stop = std::get_if<wire::StopActor>(&control)) {
    actors_->stop(stop->actor, stop->reason);
  } else if (const auto* confirm = std::get_if<wire::ConfirmActor>(&control)) {
    if (auto why = actors_->why_ended(confirm->actor)) {
      node_->tell(wire::ActorEnded{confirm->actor, *std::move(why), false});
    } else {
      node_->tell(*confirm);
    }
  } else if (auto* down = std::get_if<wire::ProcessDown>(&control)) {
    routes_->process_down(down->process, down->reason);
    leases_->process_down(down->process);
    tasks_->process_down(down->process, down->reason);
    objects_->process_down(down->process, down->reason);
    const auto was_there = [at = down->process](ProcessAddress p) { return p == at; };
    leaving_->forget(was_there);
    fail_calls(was_there, actor_died(down->reason));
  } else if (auto* node = std::get_if<wire::NodeDown>(&control)) {
    routes_->node_down(node->node, node->reason);
    leases_->node_down(node->node);
    tasks_->node_down(node->node, node->reason);
    objects_->node_down(node->node, node->reason);
    const auto was_there = [at = node->node](ProcessAddress p) { return p.node == at; };
    leaving_->forget(was_there);
    fail_calls(was_there, actor_died(node->reason));
  } else if (auto* lost = std::get_if<wire::NodeLost>(&control)) {
    routes_->node_lost(lost->node);
    leases_->node_lost(lost->node);
    objects_->node_lost(lost->node);
    fail_calls([at = lost->node](ProcessAddress p) { return p.node == at; }, link_broke(lost->reason));
  } else if (auto* place = std::get_if<wire::ActorAt>(&control)) {
    directory_->told(place->place);
  } else if (const auto* leaves = std::get_if<wire::ActorLeaves>(&control)) {
    leaving_->told(*leaves);
  } else if (auto* waits = std::get_if<wire::SpawnWaits>(&control)) {
    node_->waits(waits->request, std::move(waits->why));
  } else if (const auto* keeps = std::get_if<wire::TaskWaits>(&control)) {
    tasks_->keeps_cpus(keeps->others);
  } else if (auto* output = std::get_if<wire::Output>(&control)) {
    handlers_.on_output(*output);
  } else if (auto* leave = std::get_if<wire::Leave>(&control)) {
    told_to_leave(leave->reason);
  }
}

void Process::handle(wire::StartActorHere&& start) {
  const ActorAddress at{config_.node, config_.process, start.actor};
  actors_->start(
      {at, start.constructor, std::move(start.args), start.isolated, start.max_concurrency, keeper_of(start)},
      [this, id = start.actor](Result<void> started) {
        if (started) {
          node_->tell(wire::ActorUp{id});
        } else {
          node_->tell(wire::ActorNotUp{id, started.error()});
        }
      },
      [this](const ActorAddress& actor, const std::string& reason) {
        node_->tell(wire::ActorEnded{actor.actor, reason, !ending_});
      },
      nullptr);
}

void Process::on_node_gone(const std::string& why) {
  fail_all_calls(own_node_gone("a call was not sent", why, kSpawnThere),
                 own_node_gone("a call has no answer", why, kSpawnThere));
  objects_->close(why);
  told_to_leave("its node is gone: " + why);
  if (!ending_ && !std::exchange(node_gone_, true) && handlers_.on_node_lost) handlers_.on_node_lost();
}

// Actors.

std::shared_ptr<CallState> Process::spawn(ActorSpawn spawn) {
  if (spawn.here) return spawn_here(std::move(spawn));
  return spawn.through_head() ? spawn_through_head(std::move(spawn)) : spawn_light(std::move(spawn));
}

std::shared_ptr<CallState> Process::spawn_here(ActorSpawn spawn) {
  auto state = std::make_shared<CallState>(rings_.get());
  const ActorAddress at{config_.node, config_.process, next_light_id()};
  actors_->start(
      {at, spawn.constructor, std::move(spawn.args), spawn.isolated, spawn.max_concurrency},
      [state, at](Result<void> started) { state->resolve(started ? spawned(at) : Outcome(started.error())); },
      nullptr, nullptr);
  return state;
}

std::shared_ptr<CallState> Process::spawn_through_head(ActorSpawn spawn) {
  wire::ActorPayload payload{spawn.constructor, spawn.label,           driver(),
                             config_.package,   std::move(spawn.args), spawn.max_concurrency};
  if (spawn.max_restarts != 0 && !spawn.detached) payload.owner = address();
  const auto bytes = wire::encode(payload);
  cluster::ActorSpec spec;
  spec.job = config_.job;
  spec.type = std::move(spawn.type);
  spec.name = std::move(spawn.name);
  spec.payload.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  spec.demand = {spawn.cpu_e4, spawn.isolated,        spawn.node, spawn.gpu_e4, spawn.group,
                 spawn.bundle, std::move(spawn.other)};
  spec.max_restarts = spawn.max_restarts;
  spec.max_task_retries = spawn.max_task_retries;
  spec.detached = spawn.detached;
  const auto asked = node_->ask(
      [&](std::uint64_t request) {
        return wire::SpawnAsk{request, std::move(spec)};
      },
      rings_.get());
  asked.state->set_on_cancel([this, request = asked.number](Duration) { node_->cancel(request); });
  return asked.state;
}

std::shared_ptr<CallState> Process::spawn_light(ActorSpawn spawn) {
  auto state = std::make_shared<CallState>(rings_.get());
  const NodeId on = spawn.node;
  leases_->with_process(on, [this, state, spawn = std::move(spawn)](Result<ProcessAddress> process) mutable {
    if (!process) {
      state->resolve(process.error());
    } else {
      construct_in(*process, std::move(spawn), state);
    }
  });
  return state;
}

void Process::construct_in(ProcessAddress process, ActorSpawn spawn, std::shared_ptr<CallState> state) {
  const ActorAddress at{process.node, process.process, next_light_id()};
  if (process == address()) {
    return actors_->start(
        {at, spawn.constructor, std::move(spawn.args), false},
        [state, at](Result<void> started) {
          state->resolve(started ? spawned(at) : Outcome(started.error()));
        },
        nullptr, nullptr);
  }
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kSpawn;
  header.to = process;
  header.from = address();
  header.job = config_.job;
  header.actor = at.actor;
  header.method = spawn.constructor;
  header.id = calls_.add({state, wire::FrameKind::kSpawn, at, wire::kHeaderBytes + spawn.args.size()});
  if (auto sent = routes_->send(header, spawn.args); !sent && calls_.take(header.id, process))
    state->resolve(sent.error());
}

void Process::kill(const ActorAddress& actor, std::string reason) {
  if (actor.home() == address() && actors_->stop(actor.actor, reason)) return;
  if (!is_light(actor.actor)) return kill_for_good(actor, std::move(reason));
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kStop;
  header.to = actor.home();
  header.from = address();
  header.job = config_.job;
  header.actor = actor.actor;
  if (auto sent = routes_->send(header, wire::encode(reason)); !sent) return;  // it is gone, or our node is
  if (actor.node == config_.node) return;
  // The link may break before it arrives: then it is said again.
  const auto ended = send_call(wire::FrameKind::kMonitor, actor, 0, {});
  ended->on_ready([this, ended, actor, reason = std::move(reason)] {
    const bool broke = !ended->outcome().ok() && ended->outcome().error().code == ErrorCode::kUnavailable;
    if (!broke || left_ != 0) return;
    later(kAgain, [this, actor, reason] { kill(actor, reason); });
  });
}

void Process::monitor(const ActorAddress& actor, OnDeath callback) {
  if (is_restartable(actor.actor)) return directory_->monitor(actor.actor, std::move(callback));
  std::shared_ptr<CallState> ended;
  if (actor.home() == address()) {
    ended = std::make_shared<CallState>(rings_.get());
    actors_->monitor(actor.actor, Responder(ended));
  } else {
    ended = send_call(wire::FrameKind::kMonitor, actor, 0, {});
  }
  ended->on_ready([this, ended, actor, callback = std::move(callback)]() mutable {
    if (ending_) return;  // what the callback refers to may be gone already
    const Outcome& outcome = ended->outcome();
    // A broken link is no death: ask again.
    if (!outcome.ok() && outcome.error().code == ErrorCode::kUnavailable && left_ == 0) {
      return later(kAgain, [this, actor, callback = std::move(callback)]() mutable {
        monitor(actor, std::move(callback));
      });
    }
    const std::string reason =
        outcome.ok() ? wire::decode<std::string>(*outcome).value_or("it ended") : outcome.error().why;
    later(Duration::zero(), [this, callback = std::move(callback), reason] {
      if (!ending_) callback({reason, false});
    });
  });
}

void Process::begin_end() {
  ending_ = true;
  node_->tell(wire::JobEnd{"the driver has ended"});
  node_->tell(wire::Leave{"the driver has ended"});
}

void Process::end_cluster(Duration timeout) {
  begin_end();
  const MonotonicClock clock;
  const Instant deadline = clock.now() + timeout;
  for (Instant now = clock.now(); left_ == 0 && now < deadline; now = clock.now())
    futex_wait(left_, 0, deadline - now);
}

/// Called by the thread that receives.
void Process::told_to_leave(const std::string& why) {
  if (left_ == 0) why_left_ = why;
  left_ = 1;
  futex_wake(left_, INT_MAX);
}

void Process::run_until_told_to_leave() {
  while (left_ == 0) futex_wait(left_, 0, std::chrono::seconds(60));
}

}  // namespace troupe
