#include "runtime/host/process.hpp"

#include <climits>

#include "runtime/core/futex.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "runtime/link/socket/link_codec.hpp"

namespace troupe {
namespace {

constexpr Duration kPulse = std::chrono::seconds(1);
constexpr Duration kNodeAnswers = std::chrono::seconds(30);

thread_local bool hears_node =
    false;  ///< this thread receives what the node says: it must not wait for the node

ErrorInfo actor_died(std::string why) {
  return {ErrorCode::kActorDied, "the actor is gone", std::move(why),
          "spawn it again, or monitor it to be told"};
}

/// Runs functions one after another, off the thread that hears the node.
caf::behavior mailman() {
  return {[](const RunMessage& message) { message.work(); }};
}

}  // namespace

Process::Process(Config config, transport::LocalLink link, OnNodeLost on_node_lost, OnOutput on_output)
    : config_(std::move(config)),
      on_node_lost_(std::move(on_node_lost)),
      on_output_(std::move(on_output)),
      link_(std::move(link)) {
  // Few threads that sleep when idle: light actors usually take their turn in the thread that received the
  // message.
  caf_config_.set("scheduler.policy", caf::atom("sharing"));
  caf_config_.set("scheduler.max-threads", std::size_t{2});
  caf_ = std::make_unique<caf::actor_system>(caf_config_);
  inline_unit_ = std::make_unique<InlineUnit>(*caf_);
  mailman_ = caf_->spawn(mailman);
  auto bell = transport::Doorbell::create().value();
  const int bell_fd = bell.fd();
  hub_ = std::make_unique<RingHub>(
      std::move(bell),
      [this](ProcessId, const wire::FrameHeader& header, wire::ByteView body) {
        on_frame(header, body, inline_unit_.get());
      },
      [this] { inline_unit_->run(); });
  if (!wire::send_control(link_, address(), wire::Hello{}, std::span(&bell_fd, 1))) {
    throw Unavailable({ErrorCode::kUnavailable, "cannot reach this machine's node", "it closed the link",
                       "see its output"});
  }
  reader_ = std::thread([this] { receive_from_node(); });
  pulser_ = std::thread([this] { pulse(); });
}

Process::~Process() {
  std::unordered_map<ActorId, std::shared_ptr<HostedActor>> actors;
  {
    const std::lock_guard lock(mutex_);
    actors = actors_;
  }
  for (const auto& [id, actor] : actors)
    actor->enqueue(caf::make_message(StopMessage{"its process ended"}), nullptr);
  actors.clear();
  for (Instant deadline = MonotonicClock().now() + std::chrono::seconds(5);
       MonotonicClock().now() < deadline;) {
    {
      const std::lock_guard lock(mutex_);
      if (actors_.empty()) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  left_ = 1;
  futex_wake(left_, INT_MAX);
  link_.shutdown();
  reader_.join();
  pulser_.join();
  hub_.reset();
  caf::anon_send_exit(mailman_, caf::exit_reason::user_shutdown);
  mailman_ = nullptr;
  caf_.reset();
}

// Calls.

std::shared_ptr<CallState> Process::call(const ActorAddress& to, std::uint64_t method, wire::Bytes args,
                                         bool one_way) {
  auto state = one_way ? nullptr : std::make_shared<CallState>(hub_.get());
  if (to.home() == address()) {
    deliver(to.actor, method, std::move(args), one_way ? Responder() : Responder(state), nullptr);
    return state;
  }
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCall;
  header.flags = one_way ? wire::kFlagOneWay : 0;
  header.to = to.home();
  header.from = address();
  header.id = next_number_.fetch_add(1, std::memory_order_relaxed);
  header.actor = to.actor;
  header.method = method;
  if (!one_way) {
    const std::lock_guard lock(mutex_);
    calls_.emplace(header.id, PendingCall{state, to});
  }
  std::string gone = why_gone(to);
  if (gone.empty() && !send(to.home(), header, args)) gone = "its process cannot be reached";
  if (!gone.empty() && !one_way) {
    {
      const std::lock_guard lock(mutex_);
      calls_.erase(header.id);
    }
    state->resolve(actor_died(gone));
  }
  return state;
}

void Process::reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome) {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kReply;
  header.flags = outcome.ok() ? 0 : wire::kFlagError;
  header.to = to;
  header.from = address();
  header.id = call;
  if (outcome.ok()) {
    send(to, header, *outcome);
  } else {
    send(to, header, wire::encode(std::tuple(outcome.error())));
  }
}

std::string Process::why_gone(const ActorAddress& actor) const {
  const std::lock_guard lock(mutex_);
  if (node_gone_) return "this machine's node is gone";
  if (const auto at = dead_processes_.find(actor.process); at != dead_processes_.end()) return at->second;
  if (const auto at = dead_nodes_.find(actor.node); at != dead_nodes_.end()) return at->second;
  if (const auto at = dead_actors_.find(actor.actor); at != dead_actors_.end()) return at->second;
  return {};
}

bool Process::send(ProcessAddress to, const wire::FrameHeader& header, wire::ByteView body) {
  if (body.size() > wire::kMessageMax) {
    throw_error({ErrorCode::kLimit, "a message is too long",
                 std::to_string(body.size()) + " bytes is more than 64 MiB",
                 "pass large data through shared memory"});
  }
  if (to.node == config_.node) return ensure_ring(to.process) && hub_->send(to.process, header, body);
  const std::lock_guard lock(link_mutex_);
  return wire::send_message(link_, header, body);
}

bool Process::ensure_ring(ProcessId peer) {
  if (hub_->has(peer)) return true;
  if (hears_node) return false;
  const std::lock_guard lock(ring_mutex_);
  if (hub_->has(peer)) return true;
  // Without receiving in the meantime: what came in could need this ring, too.
  const auto state = ask([&](std::uint64_t request) { return wire::RingAsk{request, peer}; }, nullptr);
  return state->wait(kNodeAnswers) && state->outcome().ok() && hub_->has(peer);
}

// Requests to the node.

std::shared_ptr<CallState> Process::ask(const std::function<wire::Control(std::uint64_t request)>& make) {
  return ask(make, hub_.get());
}

std::shared_ptr<CallState> Process::ask(const std::function<wire::Control(std::uint64_t request)>& make,
                                        Waiter* waiter) {
  auto state = std::make_shared<CallState>(waiter);
  const std::uint64_t request = next_number_.fetch_add(1);
  bool gone = false;
  {
    const std::lock_guard lock(mutex_);
    gone = node_gone_;
    if (!gone) asks_.emplace(request, PendingAsk{state, {}});
  }
  if (gone) {
    state->resolve(ErrorInfo{ErrorCode::kUnavailable, "cannot ask this machine's node", "it is gone", ""});
  } else {
    tell(make(request));
  }
  return state;
}

void Process::tell(const wire::Control& message) {
  const std::lock_guard lock(link_mutex_);
  wire::send_control(link_, address(), message);
}

Result<SharedMemory> Process::open_region(const std::string& key, std::size_t bytes, const std::string& label,
                                          bool abortable) {
  std::uint64_t number = 0;
  const auto state = ask([&](std::uint64_t request) {
    number = request;
    return wire::RegionAsk{request, key, bytes, label, abortable};
  });
  if (!state->wait(kNodeAnswers)) {
    return ErrorInfo{ErrorCode::kTimeout, "no shared memory '" + key + "'",
                     "the node did not answer within 30 s", ""};
  }
  if (!state->outcome().ok()) return state->outcome().error();
  std::vector<UniqueFd> fds;
  {
    const std::lock_guard lock(mutex_);
    const auto at = asks_.find(number);
    if (at != asks_.end()) fds = std::move(at->second.fds);
    asks_.erase(number);
  }
  if (fds.empty())
    return ErrorInfo{ErrorCode::kIo, "no shared memory '" + key + "'", "its descriptor was lost",
                     "raise ulimit -n"};
  return SharedMemory::map(std::move(fds.front()));
}

// What comes from the node.

void Process::receive_from_node() {
  hears_node = true;
  transport::Packet packet;
  wire::Assembler assembler;
  std::vector<UniqueFd> fds;
  for (;;) {
    if (link_.receive(packet, true) != transport::LinkStatus::kOk) break;
    for (auto& fd : packet.fds) fds.push_back(std::move(fd));
    const auto header = wire::decode_header(packet.bytes);
    if (!header) {
      log(LogLevel::kWarning, header.error().message());
      continue;
    }
    const auto body = assembler.feed(*header, wire::ByteView(packet.bytes).subspan(wire::kHeaderBytes));
    if (!body) continue;
    if (header->kind != wire::FrameKind::kControl) {
      on_frame(*header, *body, nullptr);
    } else if (auto message = wire::decode_control(*header, *body)) {
      on_control(*std::move(message), std::exchange(fds, {}));
    } else {
      log(LogLevel::kWarning, message.error().message());
    }
  }
  node_lost("the node closed its link");
}

void Process::on_frame(const wire::FrameHeader& header, wire::ByteView body, caf::execution_unit* unit) {
  if (header.kind == wire::FrameKind::kCall) {
    const bool one_way = (header.flags & wire::kFlagOneWay) != 0;
    deliver(header.actor, header.method, wire::Bytes(body.begin(), body.end()),
            one_way ? Responder() : Responder(this, header.from, header.id), unit);
    return;
  }
  if (header.kind != wire::FrameKind::kReply) return;
  std::shared_ptr<CallState> state;
  {
    const std::lock_guard lock(mutex_);
    const auto at = calls_.find(header.id);
    if (at == calls_.end() || at->second.to.home() != header.from)
      return;  // an answer nobody waits for any more
    state = std::move(at->second.state);
    calls_.erase(at);
  }
  Outcome outcome = wire::Bytes(body.begin(), body.end());
  if ((header.flags & wire::kFlagError) != 0) {
    auto error = wire::decode<std::tuple<ErrorInfo>>(body);
    outcome = error ? std::get<0>(*std::move(error)) : error.error();
  }
  if (unit != nullptr) {
    state->resolve(std::move(outcome));
  } else {
    later([state, outcome = std::move(outcome)]() mutable { state->resolve(std::move(outcome)); });
  }
}

void Process::on_control(wire::Control message, std::vector<UniqueFd> fds) {
  if (auto* answer = std::get_if<wire::Answer>(&message)) return handle(std::move(*answer), std::move(fds));
  if (auto* offer = std::get_if<wire::RingOffer>(&message)) return handle(*offer, std::move(fds));
  if (auto* start = std::get_if<wire::StartActorHere>(&message)) return handle(std::move(*start));
  if (auto* stop = std::get_if<wire::StopActor>(&message)) return stop_here(stop->actor, stop->reason);
  if (auto* down = std::get_if<wire::ProcessDown>(&message)) return process_down(down->process, down->reason);
  if (auto* down = std::get_if<wire::NodeDown>(&message)) {
    {
      const std::lock_guard lock(mutex_);
      dead_nodes_.emplace(down->node, down->reason);
    }
    return fail_where([node = down->node](const ActorAddress& a) { return a.node == node; }, down->reason);
  }
  if (auto* gone = std::get_if<wire::ActorGone>(&message)) {
    {
      const std::lock_guard lock(mutex_);
      dead_actors_.emplace(gone->actor.actor, gone->reason);
    }
    return fail_where([id = gone->actor.actor](const ActorAddress& a) { return a.actor == id; },
                      gone->reason);
  }
  if (auto* output = std::get_if<wire::Output>(&message)) return on_output_(*output);
  if (std::get_if<wire::Leave>(&message) != nullptr) {
    left_ = 1;
    futex_wake(left_, INT_MAX);
  }
}

void Process::handle(wire::Answer&& answer, std::vector<UniqueFd> fds) {
  std::shared_ptr<CallState> state;
  {
    const std::lock_guard lock(mutex_);
    const auto at = asks_.find(answer.request);
    if (at == asks_.end()) return;
    state = at->second.state;
    if (fds.empty()) {
      asks_.erase(at);
    } else {
      at->second.fds = std::move(fds);  // taken by open_region
    }
  }
  Outcome outcome = answer.ok ? Outcome(std::move(answer.value)) : Outcome(std::move(answer.error));
  later([state, outcome = std::move(outcome)]() mutable { state->resolve(std::move(outcome)); });
}

void Process::handle(const wire::RingOffer& offer, std::vector<UniqueFd> fds) {
  if (fds.size() != 2) return log(LogLevel::kError, "a ring came without its descriptors: raise ulimit -n");
  auto memory = SharedMemory::map(std::move(fds[0]));
  auto bell = transport::Doorbell::map(std::move(fds[1]));
  if (!memory || !bell) return log(LogLevel::kError, (memory ? bell.error() : memory.error()).message());
  const auto added = hub_->add(offer.peer, *std::move(memory), *std::move(bell), offer.first);
  if (!added) log(LogLevel::kError, added.error().message());
}

void Process::process_down(ProcessAddress process, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    dead_processes_.emplace(process.process, reason);
  }
  hub_->remove(process.process);
  fail_where([process](const ActorAddress& a) { return a.home() == process; }, reason);
}

void Process::fail_where(const std::function<bool(const ActorAddress&)>& gone, const std::string& reason) {
  std::vector<std::shared_ptr<CallState>> failed;
  std::vector<OnDown> told;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = calls_.begin(); at != calls_.end();) {
      if (!gone(at->second.to)) {
        ++at;
        continue;
      }
      failed.push_back(std::move(at->second.state));
      at = calls_.erase(at);
    }
    for (auto at = monitors_.begin(); at != monitors_.end();) {
      if (at->second.empty() || !gone(at->second.front().first)) {
        ++at;
        continue;
      }
      for (auto& [address, callback] : at->second) told.push_back(std::move(callback));
      at = monitors_.erase(at);
    }
  }
  if (failed.empty() && told.empty()) return;
  later([failed = std::move(failed), told = std::move(told), reason] {
    for (const auto& callback : told) callback(reason);
    for (const auto& state : failed) state->resolve(actor_died(reason));
  });
}

void Process::node_lost(const std::string& reason) {
  std::vector<std::shared_ptr<CallState>> failed;
  {
    const std::lock_guard lock(mutex_);
    node_gone_ = true;
    for (auto& [request, ask] : asks_) failed.push_back(ask.state);
    asks_.clear();
  }
  for (const auto& state : failed) {
    later([state, reason] {
      state->resolve(ErrorInfo{ErrorCode::kUnavailable, "this machine's node gave no answer", reason, ""});
    });
  }
  fail_where([this](const ActorAddress& a) { return a.home() != address(); }, reason);
  if (left_.exchange(1) == 0 && on_node_lost_) on_node_lost_();
  futex_wake(left_, INT_MAX);
}

void Process::pulse() {
  while (left_.load() == 0) {
    futex_wait(left_, 0, kPulse);
    if (left_.load() == 0) tell(wire::Pulse{});
  }
}

void Process::run_until_told_to_leave() {
  while (left_.load() == 0) futex_wait(left_, 0, std::chrono::seconds(60));
}

void Process::end_cluster(Duration timeout) {
  tell(wire::Leave{"the driver has ended"});
  const Instant deadline = MonotonicClock().now() + timeout;
  for (Instant now = MonotonicClock().now(); left_.load() == 0 && now < deadline;
       now = MonotonicClock().now()) {
    futex_wait(left_, 0, deadline - now);
  }
}

void Process::later(std::function<void()> work) {
  caf::anon_send(mailman_, RunMessage{std::move(work)});
}

// Actors of this process.

void Process::handle(wire::StartActorHere&& start) {
  HostedActor::Spec spec{
      {config_.node, config_.process, start.actor}, start.constructor, std::move(start.args), start.isolated};
  start_actor(
      std::move(spec),
      [this, id = start.actor](Result<void> started) {
        if (started) {
          tell(wire::ActorUp{id});
        } else {
          tell(wire::ActorNotUp{id, started.error()});
        }
      },
      [this](const ActorAddress& actor, const std::string& reason) {
        tell(wire::ActorEnded{actor.actor, reason});
        actor_ended(actor, reason);
      },
      nullptr);
}

std::shared_ptr<CallState> Process::spawn_here(std::uint64_t constructor, wire::Bytes args, bool isolated) {
  const ActorAddress at{config_.node, config_.process, {SystemRandom().next()}};
  auto state = std::make_shared<CallState>(hub_.get());
  start_actor(
      {at, constructor, std::move(args), isolated},
      [state, at](Result<void> started) {
        if (started) {
          state->resolve(wire::encode(wire::SpawnAnswer{at}));
        } else {
          state->resolve(started.error());
        }
      },
      [this](const ActorAddress& actor, const std::string& reason) { actor_ended(actor, reason); }, nullptr);
  return state;
}

void Process::start_actor(HostedActor::Spec spec, HostedActor::OnReady on_ready, HostedActor::OnEnd on_end,
                          caf::execution_unit* unit) {
  const ActorId id = spec.address.actor;
  auto actor = HostedActor::start(*caf_, *this, std::move(spec), std::move(on_ready), std::move(on_end));
  {
    const std::lock_guard lock(mutex_);
    actors_.emplace(id, actor);
  }
  actor->enqueue(caf::make_message(RunMessage{[] {}}), unit);  // its first turn constructs it
}

void Process::stop_here(ActorId id, std::string reason) {
  std::shared_ptr<HostedActor> actor;
  {
    const std::lock_guard lock(mutex_);
    const auto at = actors_.find(id);
    if (at == actors_.end()) return;
    actor = at->second;
  }
  actor->enqueue(caf::make_message(StopMessage{std::move(reason)}), nullptr);
}

void Process::actor_ended(const ActorAddress& actor, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    actors_.erase(actor.actor);
    dead_actors_.emplace(actor.actor, reason);
  }
  fail_where([id = actor.actor](const ActorAddress& a) { return a.actor == id; }, reason);
}

void Process::deliver(ActorId id, std::uint64_t method, wire::Bytes args, Responder responder,
                      caf::execution_unit* unit) {
  std::shared_ptr<HostedActor> actor;
  std::string reason = "no such actor in this process";
  {
    const std::lock_guard lock(mutex_);
    const auto at = actors_.find(id);
    if (at != actors_.end()) actor = at->second;
    if (const auto dead = dead_actors_.find(id); dead != dead_actors_.end()) reason = dead->second;
  }
  if (actor == nullptr) return responder.fail(actor_died(reason));
  actor->enqueue(caf::make_message(
                     CallMessage{method, std::move(args), std::make_shared<Responder>(std::move(responder))}),
                 unit);
}

void Process::monitor(const ActorAddress& actor, OnDown callback) {
  if (ActorContext* monitoring = current_actor()) {
    callback = [run = monitoring->executor(), callback = std::move(callback)](const std::string& reason) {
      run([callback, reason] { callback(reason); });
    };
  }
  std::string gone = why_gone(actor);
  if (gone.empty() && actor.home() == address()) {
    const std::lock_guard lock(mutex_);
    if (!actors_.contains(actor.actor)) gone = "it had ended already";
  }
  if (!gone.empty()) return later([callback = std::move(callback), gone] { callback(gone); });
  const std::lock_guard lock(mutex_);
  monitors_[actor.actor].emplace_back(actor, std::move(callback));
}

// Responder.

void Responder::outcome(Outcome outcome) {
  if (local_ != nullptr) std::exchange(local_, nullptr)->resolve(std::move(outcome));
  if (process_ != nullptr) std::exchange(process_, nullptr)->reply(to_, call_, outcome);
}

Responder::~Responder() {
  if (local_ != nullptr || process_ != nullptr) fail(actor_died("it ended before it answered"));
}

}  // namespace troupe
