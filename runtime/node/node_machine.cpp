#include "runtime/node/node_machine.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"
#include "runtime/node/answers.hpp"

namespace troupe::node {
namespace {

/// One refusal may be a head that was killed in the middle of a handshake. Several are a key that it dropped,
/// because it declared this node dead: then no work of ours counts any more.
constexpr int kRefusalsToSay = 3;
constexpr int kRefusalsToLeave = 5;

std::pair<ProcessId, ProcessId> ring_of(ProcessId a, ProcessId b) {
  return std::minmax(a, b);
}

}  // namespace

NodeMachine::NodeMachine(Self self, Random& ids)
    : self_(std::move(self)),
      locals_(self_, ids),
      head_(self_.limits),
      peers_(self_, locals_, head_),
      libraries_(self_, locals_),
      packages_(self_, locals_, peers_, libraries_),
      actors_(self_, locals_, head_, packages_),
      places_(self_, head_),
      leases_(self_, locals_, head_, packages_, peers_),
      regions_(self_.limits),
      submissions_(self_, head_),
      router_(self_, locals_, peers_),
      windows_(self_.limits.output_window) {}

std::vector<NodeAction> NodeMachine::on(const NodeEvent& event, Instant now) {
  now_ = now;
  out_.clear();
  std::visit([this](const auto& e) { handle(e); }, event);
  return std::exchange(out_, {});
}

// The head.

void NodeMachine::join() {
  cluster::NodeJoined joined{self_.info,      actors_.live(), leases_.jobs(),
                             peers_.linked(), leaving_,       submissions_.held()};
  if (drain_) {
    joined.drain_left_ms = std::max<std::int64_t>(0, (drain_->until - now_) / std::chrono::milliseconds(1));
    joined.drain_reason = drain_->reason;
  }
  head_.joined(std::move(joined), out_);
  leases_.repeat(out_);
  peers_.repeat(out_);
  places_.repeat(out_);
}

void NodeMachine::handle(const HeadConnected& /*e*/) {
  head_answered_ = true;
  head_answers_ = false;
  refusals_ = 0;
  if (!left_) join();
}
void NodeMachine::handle(const HeadLost& /*e*/) {
  head_.lost();
}
void NodeMachine::handle(const HeadUnsent& e) {
  head_.lost();
  head_.tell(e.event, out_);
}
void NodeMachine::handle(const HeadRefused& e) {
  head_.lost();
  if (++refusals_ == kRefusalsToSay)
    out_.push_back(Log{LogLevel::kWarning, "the head refuses this node: " + e.why});
  if (refusals_ < kRefusalsToLeave) return;
  if (!std::exchange(member_told_, true))
    out_.push_back(
        TellMember{ErrorInfo{ErrorCode::kRefused, "the head refuses this node", e.why, "join anew"}});
  leave("the head refuses it");
}
void NodeMachine::handle(const HeadUnreachable& e) {
  unreachable_ = e.why;
  refusals_ = 0;  // nobody refused: what broke a handshake off before was a head that went
}
void NodeMachine::handle(const HeadSaid& e) {
  head_silent_ = Duration{0};
  head_is_back();
  std::visit([this](const auto& action) { said(action); }, e.action);
}
void NodeMachine::said(const cluster::StartActor& e) {
  if (leaving_) return;
  const bool is_said_again = actors_.is_here({e.actor, e.incarnation});  // it may have saved since
  actors_.start(e, now_, out_);
  if (e.spec.is_kept() && !is_said_again) keep({e.node, e.spec.job, e.actor, e.spec.payload, {}, e.state});
}
void NodeMachine::said(const cluster::KillActor& e) {
  actors_.kill({e.actor, e.incarnation}, e.reason, out_);
}
void NodeMachine::said(const cluster::ConfirmActor& e) {
  actors_.confirm({e.actor, e.incarnation}, e.question, out_);
}
void NodeMachine::said(const cluster::SpawnAnswered& e) {
  const bool kept = e.ok && is_restartable(e.actor);
  const bool wanted = kept ? head_.answered_and_kept(e.to.from.process, e.to.request, e.actor)
                           : head_.answered(e.to.from.process, e.to.request);
  const LocalProcess* owner = wanted && kept ? locals_.find(e.to.from.process) : nullptr;
  if (owner != nullptr) places_.own(e.actor, owner->job, out_);
  if (!wanted) {
    // The head did not hear that it was cancelled, or that who asked is gone: nobody wants the actor.
    const bool unwanted = head_.is_unwanted(e.to.from.process, e.to.request);
    if (e.ok && unwanted && e.to.from.node == self_.info.id) head_.tell(cluster::SpawnCancelled{e.to}, out_);
    return;
  }
  give_answer(e.to, e.ok ? Result<wire::Bytes>(
                               wire::encode(wire::SpawnAnswer{{e.address.node, e.address.process, e.actor}}))
                         : Result<wire::Bytes>(e.error));
}
void NodeMachine::said(const cluster::SpawnWaits& e) {
  head_.waits(e.to.from.process, e.to.request, e.reason);
  out_.push_back(SendLocal{e.to.from.process, wire::SpawnWaits{e.to.request, e.reason}, {}});
}
void NodeMachine::said(const cluster::NameAnswered& e) {
  if (!head_.answered(e.to.from.process, e.to.request)) return;
  give_answer(e.to, e.ok ? Result<wire::Bytes>(
                               wire::encode(wire::SpawnAnswer{{e.address.node, e.address.process, e.actor}}))
                         : Result<wire::Bytes>(e.error));
}
void NodeMachine::said(const cluster::JobAnswered& e) {
  const bool wanted = head_.answered(e.to.process, e.request);
  LocalProcess* process = locals_.living(e.to.process);
  // A driver that died before it heard of its job: nobody else ends that.
  if (process == nullptr && e.job)
    return head_.end_job({self_.info.id, e.job, "its driver is gone", e.to.process}, out_);
  if (!wanted) return;
  if (process != nullptr && e.job) {
    process->job = e.job;
    process->replaced = false;
  }
  give_answer({e.to, e.request},
              e.job ? Result<wire::Bytes>(wire::encode(wire::JobAnswer{e.job, e.incarnation}))
                    : Result<wire::Bytes>(e.error));
}
void NodeMachine::said(const cluster::NodesAnswered& e) {
  if (head_.answered(e.to.from.process, e.to.request))
    give_answer(e.to, wire::encode(wire::NodesAnswer{e.nodes}));
}
void NodeMachine::said(const cluster::Acknowledged& e) {
  const bool was_open = head_.answered(e.to.from.process, e.to.request);
  if (was_open && locals_.living(e.to.from.process) != nullptr) {
    give_answer(e.to, e.ok ? Result<wire::Bytes>(wire::Bytes{}) : Result<wire::Bytes>(e.error));
  } else if (was_open && !e.ok) {
    out_.push_back(Log{LogLevel::kWarning,
                       "a kill that a process said before it ended is not obeyed: " + e.error.message()});
  }
  if (leaving_ && !left_) finish_leaving();
}
void NodeMachine::said(const cluster::GroupAnswered& e) {
  if (!head_.answered(e.to.from.process, e.to.request)) {
    const bool unwanted = e.ok && e.to.from.node == self_.info.id;  // as of a spawn: nobody knows the group
    if (!unwanted || !head_.is_unwanted(e.to.from.process, e.to.request)) return;
    return head_.tell(cluster::SpawnCancelled{e.to}, out_);
  }
  give_answer(e.to, e.ok ? Result<wire::Bytes>(wire::encode(wire::GroupAnswer{e.status}))
                         : Result<wire::Bytes>(e.error));
}
void NodeMachine::said(const cluster::NodeAccepted& /*e*/) {
  head_answers_ = true;
  if (!std::exchange(member_told_, true)) out_.push_back(TellMember{});
}
void NodeMachine::said(const cluster::LeaseAnswered& e) {
  leases_.answered(e, now_, out_);
}
void NodeMachine::said(const cluster::ExpectPeer& e) {
  peers_.expect(e.peer, out_);
}
void NodeMachine::said(const cluster::PeerAnswered& e) {
  peer_refused(e.peer.id, peers_.answered(e, out_));
}
void NodeMachine::said(const cluster::NodeDead& e) {
  peer_refused(e.node, peers_.died(e.node, e.reason, out_));
  kill_workers_of({e.node, {}}, "its driver's node is dead: " + e.reason);
}
void NodeMachine::said(const cluster::RefuseNode& e) {
  out_.push_back(Log{LogLevel::kError, "the head refuses this node: " + e.reason});
  if (!std::exchange(member_told_, true))
    out_.push_back(
        TellMember{ErrorInfo{ErrorCode::kRefused, "the head refuses this node", e.reason, "join anew"}});
  leave("the head refused it");
}
void NodeMachine::said(const cluster::RequestRegistration& /*e*/) {
  join();
}

void NodeMachine::said(const cluster::StartDriver& e) {
  submissions_.start(e, out_);
}
void NodeMachine::said(const cluster::StopDriver& e) {
  submissions_.stop(e, now_, out_);
}
void NodeMachine::said(const cluster::DriverSettled& e) {
  submissions_.settled(e);
}
void NodeMachine::said(const cluster::ForgetSubmission& e) {
  submissions_.forget(e, out_);
}

void NodeMachine::give_answer(const cluster::Requester& to, Result<wire::Bytes> value) {
  out_.push_back(answer_to(to.from.process, to.request, std::move(value)));
}

// What local processes ask.

void NodeMachine::ask_head(LocalProcess& from, std::uint64_t request, cluster::ClusterEvent event,
                           std::size_t bytes) {
  const auto asked = head_.ask(from.id, request, std::move(event), bytes, out_);
  if (!asked) out_.push_back(answer_to(from.id, request, asked.error()));
}

void NodeMachine::handle(const DriverAttached& /*e*/) {
  locals_.adopt_driver(now_, out_);
}

void NodeMachine::handle(const LocalSaid& e) {
  LocalProcess* process = locals_.find(e.process);
  if (process == nullptr || process->state == LocalProcess::State::kDead) return;
  process->heard = now_;
  fds_ = e.fds;
  std::visit([this, process](const auto& message) { asked(*process, message); }, e.message);
}

template <class Other>
void NodeMachine::asked(LocalProcess& from, const Other& /*ask*/) {
  handle(LocalBroke{from.id, "it sent a message that is not a process's to send"});
}

void NodeMachine::handle(const LocalBroke& e) {
  LocalProcess* process = locals_.living(e.process);
  if (process == nullptr) return;
  out_.push_back(Log{LogLevel::kError, process->label + " broke the protocol: " + e.why});
  locals_.kill(*process, "it broke the protocol: " + e.why, out_);
}

void NodeMachine::handle(const LocalStuck& e) {
  if (LocalProcess* process = locals_.living(e.process))
    locals_.kill(*process, "it did not read " + std::to_string(e.bytes) + " bytes of messages", out_);
}

void NodeMachine::asked(LocalProcess& from, const wire::Hello& hello) {
  if (fds_ != 1 || hello.version != wire::kProtocolVersion)
    return locals_.kill(from, "its hello does not fit: both sides must run the same build", out_);
  if (from.state != LocalProcess::State::kStarting) return;
  from.state = LocalProcess::State::kUp;
  out_.push_back(Welcome{from.id});
  actors_.process_up(from, out_);
  leases_.process_up(from, now_, out_);
}
/// The head cannot tell: a parked job that is taken over has its id.
bool NodeMachine::refuse_replaced(const LocalProcess& from, std::uint64_t request, std::string what) {
  if (from.replaced) out_.push_back(answer_to(from.id, request, replaced(std::move(what))));
  return from.replaced;
}
void NodeMachine::asked(LocalProcess& from, const wire::SpawnAsk& ask) {
  cluster::ActorSpec spec = ask.spec;
  spec.job = from.job;  // a process speaks for no other
  if (!from.job) {
    out_.push_back(answer_to(from.id, ask.request,
                             ErrorInfo{ErrorCode::kRefused, "cannot spawn an actor",
                                       "this process has no job", "register a job first"}));
    return;
  }
  if (refuse_replaced(from, ask.request, "cannot spawn " + spec.type)) return;
  const std::size_t bytes = spec.payload.size();
  ask_head(from, ask.request,
           cluster::SpawnRequested{{{self_.info.id, from.id}, ask.request}, std::move(spec)}, bytes);
}
void NodeMachine::asked(LocalProcess& from, const wire::SpawnCancel& ask) {
  head_.cancel(from.id, ask.request);
  head_.tell(cluster::SpawnCancelled{{{self_.info.id, from.id}, ask.request}}, out_);
}
void NodeMachine::asked(LocalProcess& from, const wire::LeaseAsk& ask) {
  if (refuse_replaced(from, ask.request, "no process for light actors")) return;
  leases_.ask(from, ask, now_, out_);
}
void NodeMachine::asked(LocalProcess& from, const wire::JobAsk& ask) {
  if (!from.is_driver)
    return out_.push_back(
        answer_to(from.id, ask.request,
                  ErrorInfo{ErrorCode::kRefused, "no new job", "a worker belongs to its job", ""}));
  ask_head(from, ask.request,
           cluster::JobRegistered{ask.name, {self_.info.id, from.id}, ask.request, from.submission}, 0);
}
void NodeMachine::asked(LocalProcess& from, const wire::JobEnd& ask) {
  if (from.is_driver && from.job) return head_.end_job({self_.info.id, from.job, ask.reason, from.id}, out_);
  out_.push_back(Log{LogLevel::kWarning, from.label + " may not end its job: its driver does"});
}
void NodeMachine::asked(LocalProcess& from, const wire::RingAsk& ask) {
  LocalProcess* peer = locals_.living(ask.peer);
  if (peer == nullptr || peer == &from || peer->state != LocalProcess::State::kUp) {
    const std::string* why = locals_.why_dead(ask.peer);
    out_.push_back(answer_to(
        from.id, ask.request,
        ErrorInfo{ErrorCode::kActorDied, "no ring", why == nullptr ? "there is no such process" : *why, ""}));
  } else if (!rings_.insert(ring_of(from.id, peer->id)).second) {
    out_.push_back(answer_to(from.id, ask.request, wire::Bytes{}));  // the offer came before
  } else {
    out_.push_back(MakeRing{from.id, peer->id, ask.request, wire::RingOffer{peer->id, peer->job, true},
                            wire::RingOffer{from.id, from.job, false}});
  }
}
void NodeMachine::handle(const RingMade& e) {
  if (e.error) rings_.erase(ring_of(e.first, e.second));
  out_.push_back(answer_to(e.first, e.request,
                           e.error ? Result<wire::Bytes>(*e.error) : Result<wire::Bytes>(wire::Bytes{})));
}
void NodeMachine::asked(LocalProcess& from, const wire::RegionAsk& ask) {
  regions_.open(from.job, from.id, ask, out_);
}
void NodeMachine::asked(LocalProcess& from, const wire::RegionDrop& ask) {
  regions_.drop(from.job, ask.key, now_, out_);
}
void NodeMachine::handle(const RegionMade& e) {
  regions_.made(e.region, e.error, out_);
}
void NodeMachine::asked(LocalProcess& from, const wire::NodesAsk& ask) {
  ask_head(from, ask.request, cluster::NodesWanted{{{self_.info.id, from.id}, ask.request}}, 0);
}
void NodeMachine::asked(LocalProcess& from, const wire::GroupAsk& ask) {
  if (ask.verb == cluster::GroupVerb::kMake &&
      refuse_replaced(from, ask.request, "cannot make a placement group"))
    return;
  const std::size_t bytes = ask.spec.name.size() + ask.spec.bundles.size() * sizeof(cluster::BundleDemand);
  ask_head(from, ask.request,
           cluster::GroupRequested{
               {{self_.info.id, from.id}, ask.request}, from.job, ask.verb, ask.group, ask.spec},
           bytes);
}
void NodeMachine::asked(LocalProcess& from, const wire::FindAsk& ask) {
  ask_head(from, ask.request,
           cluster::LookupActor{{{self_.info.id, from.id}, ask.request}, from.job, ask.name},
           ask.name.size());
}
void NodeMachine::asked(LocalProcess& from, const wire::KillAsk& ask) {
  const cluster::KillRequested kill{self_.info.id, from.job, ask.actor.actor,
                                    ask.reason,    from.id,  ask.request};
  if (ask.request != 0) {
    ask_head(from, ask.request, kill, ask.reason.size());
  } else {
    head_.tell(kill, out_);
  }
  if (is_restartable(ask.actor.actor)) return;  // it may be elsewhere by now, and must not start again
  if (ask.actor.node == self_.info.id) {
    actors_.kill_for(from.job, ask.actor.actor, ask.reason, out_);
  } else if (ask.actor.node) {
    ErrorInfo ignored;  // the head repeats it
    peers_.send({ask.actor.node, {}}, ask, now_, ignored, out_, from.id, from.job);
  }
}
void NodeMachine::asked(LocalProcess& from, const wire::ActorUp& ask) {
  actors_.up(from, ask.actor, out_);
}
void NodeMachine::asked(LocalProcess& from, const wire::ConfirmActor& ask) {
  actors_.lives(from, ask.actor, ask.question, out_);
}
void NodeMachine::asked(LocalProcess& from, const wire::ActorNotUp& ask) {
  actors_.not_up(from, ask.actor, ask.error, out_);
}
void NodeMachine::asked(LocalProcess& from, const wire::ActorEnded& ask) {
  if (from.isolated) from.leave_reason = ask.reason;  // else it would be gone with "exit code 0"
  actors_.ended(from, ask, out_);
}
void NodeMachine::asked(LocalProcess& from, const wire::Leave& ask) {
  if (from.is_parent) return leave(ask.reason);
  if (from.is_driver) out_.push_back(SendLocal{from.id, wire::Leave{"its driver said goodbye"}, {}});
}

void NodeMachine::handle(const WorkerWrote& e) {
  const LocalProcess* process = locals_.find(e.process);
  if (process == nullptr || !process->driver.process) return;
  const ProcessAddress driver = process->driver;
  // The last words of one that ends are few, and cannot wait.
  bool goes = !windows_.is_full(driver) || !process->lives();
  wire::Output output{process->label, e.error, e.text, self_.info.id};
  if (goes && driver.node == self_.info.id) {
    out_.push_back(SendLocal{driver.process, std::move(output), {}});
  } else if (goes) {
    ErrorInfo ignored;  // it waits until there is a way
    goes = peers_.send(driver, std::move(output), now_, ignored, out_);
  }
  if (goes) return windows_.sent(driver, e.text.size());
  out_.push_back(HoldOutput{e.process, e.error, e.text});
}

void NodeMachine::asked(LocalProcess& from, const wire::OutputTaken& ask) {
  if (!from.is_driver) return handle(LocalBroke{from.id, "it is no driver, and gets no output"});
  const ProcessAddress driver{self_.info.id, from.id};
  if (ask.node == self_.info.id) return output_taken(driver, ask.bytes);
  ErrorInfo why;
  if (!peers_.send({ask.node, {}}, wire::OutputTaken{driver, ask.node, ask.bytes}, now_, why, out_))
    peers_.tell_incoming(ask.node, why.why, out_);
}

void NodeMachine::output_taken(ProcessAddress driver, std::size_t bytes) {
  if (windows_.taken(driver, bytes)) out_.push_back(RetryOutput{});
}

// Deaths.

void NodeMachine::begin_end(LocalProcess& process, const std::string& how) {
  if (!locals_.begin_end(process, how)) return;
  // First of all the members of its groups leave their collectives; the rest can wait a microsecond.
  regions_.process_died(process.id, process.end_reason, now_, out_);
  out_.push_back(DrainOutput{process.id});
}

void NodeMachine::handle(const WorkerNotStarted& e) {
  LocalProcess* process = locals_.find(e.process);
  if (process == nullptr) return;
  process->reaped = true;
  begin_end(*process, e.error.message());
}

void NodeMachine::handle(const ProcessEnding& e) {
  if (LocalProcess* process = locals_.find(e.process)) begin_end(*process, e.how);
}

void NodeMachine::handle(const OutputDrained& e) {
  LocalProcess* found = locals_.find(e.process);
  if (found == nullptr || found->state != LocalProcess::State::kEnding) return;
  LocalProcess& process = *found;
  locals_.finish_end(process, e.last_line);
  const wire::ProcessDown down{{self_.info.id, process.id}, process.end_reason};
  locals_.tell_all(down, out_);
  peers_.tell_linked(down, now_, out_);
  head_.forget(process.id, process.is_driver, out_);
  std::erase_if(rings_,
                [&](const auto& ring) { return ring.first == process.id || ring.second == process.id; });
  actors_.process_ended(process, out_);
  places_.process_ended(process.id);
  leases_.process_ended(process, now_, out_);
  if (process.is_driver) {
    windows_.forget(ProcessAddress{self_.info.id, process.id});
    const std::string reason = "its driver is gone: " + process.end_reason;
    if (process.job) head_.end_job({self_.info.id, process.job, reason, process.id}, out_);
    if (process.is_parent) {
      lost_driver_ = !leaving_;
      leave("its driver is gone");
    } else {
      kill_workers_of({self_.info.id, process.id}, reason);
    }
  }
  if (process.reaped) {
    out_.push_back(ForgetProcess{process.id, process.end_reason});
    locals_.forget(e.process);
    if (leaving_) finish_leaving();
  }
}

void NodeMachine::handle(const ProcessEnded& e) {
  LocalProcess* process = locals_.find(e.process);
  if (process == nullptr) return;
  process->reaped = true;
  if (process->state != LocalProcess::State::kDead) return begin_end(*process, e.how);
  out_.push_back(ForgetProcess{e.process, process->end_reason});
  locals_.forget(e.process);
  if (leaving_) finish_leaving();
}

void NodeMachine::kill_workers_of(ProcessAddress driver, const std::string& reason) {
  for (auto& [id, process] : locals_.all()) {
    const bool of_it = process.driver == driver || (!driver.process && process.driver.node == driver.node);
    if (of_it && !process.is_driver && !process.detached) locals_.kill(process, reason, out_);
  }
  leases_.driver_gone(driver, reason, now_, out_);
}

// Peers.

void NodeMachine::peer_refused(NodeId node, const Peers::Refused& error) {
  if (!error) return;
  leases_.peer_lost(node, *error, out_);
  if (windows_.forget(node)) out_.push_back(RetryOutput{});
  if (error->code == ErrorCode::kActorDied) {
    for (const auto& done : packages_.peer_died(node, error->why, out_)) package_done(done);
  }
}

void NodeMachine::handle(const PeerConnected& e) {
  peers_.connected(e.node, out_);
}
void NodeMachine::handle(const PeerUnusable& e) {
  peer_refused(e.node, peers_.unusable(e.node, e.error, out_));
}
void NodeMachine::handle(const PeerCameIn& e) {
  peer_refused(e.node, peers_.came_in(e.node, out_));
}
void NodeMachine::handle(const PeerLost& e) {
  peer_refused(e.node, peers_.lost(e.node, e.outgoing, e.why, out_));
}
void NodeMachine::handle(const PeerFailed& e) {
  peer_refused(e.node, peers_.failed(e.node, e.why, out_));
}
void NodeMachine::handle(const PeerStuck& e) {
  // The shell has to make a new connection: what waited for the old one is lost, and told to be.
  out_.push_back(Log{LogLevel::kWarning, "node " + to_string(e.node) + " does not read: " +
                                             std::to_string(e.bytes) + " bytes wait for it"});
  peer_refused(e.node, peers_.reconnect(e.node, "it does not read", out_));
}

void NodeMachine::handle(const PeerSaid& e) {
  const NodeId from = e.header.from.node;
  if (const auto* down = std::get_if<wire::ProcessDown>(&e.message)) {
    if (down->process.node != from) return;  // a node speaks of its own alone
    locals_.tell_all(*down, out_);
    windows_.forget(down->process);
    kill_workers_of(down->process, "its driver is gone: " + down->reason);
  } else if (const auto* kill = std::get_if<wire::KillAsk>(&e.message)) {
    actors_.kill_for(e.header.job, kill->actor.actor, kill->reason, out_);
  } else if (const auto* ask = std::get_if<wire::PackageAsk>(&e.message)) {
    packages_.give(from, *ask, now_, out_);
  } else if (const auto* part = std::get_if<wire::PackagePart>(&e.message)) {
    packages_.part(from, *part, now_, out_);
  } else if (const auto* lease = std::get_if<wire::PeerLeaseAsk>(&e.message)) {
    if (lease->job == e.header.job) leases_.ask(from, *lease, now_, out_);
  } else if (const auto* answer = std::get_if<wire::Answer>(&e.message)) {
    leases_.answered(from, *answer, out_);
  } else if (const auto* output = std::get_if<wire::Output>(&e.message)) {
    if (locals_.living(e.header.to.process) == nullptr) return;
    SendLocal passed{e.header.to.process, *output, {}};
    std::get<wire::Output>(passed.message).node = from;  // a node speaks of its own alone
    out_.push_back(std::move(passed));
  } else if (const auto* taken = std::get_if<wire::OutputTaken>(&e.message)) {
    if (taken->driver.node == from) output_taken(taken->driver, taken->bytes);
  }
}

void NodeMachine::handle(const PartTaken& e) {
  if (const auto done = packages_.taken(e, now_, out_)) package_done(*done);
}

// Time, and the end.

void NodeMachine::handle(const Tick& /*e*/) {
  // A node that was stopped itself heard nobody meanwhile: all get that time on top.
  const Duration gap = last_tick_ < Instant{0} ? Duration{0} : now_ - last_tick_;
  const Duration slip = gap > 2 * self_.times.tick ? gap : Duration{0};
  last_tick_ = now_;
  if (!head_answered_ && !member_told_) wait_for_head(gap - slip);
  if (head_answered_ && (!head_.up() || away_told_) && !left_) miss_head(gap - slip);
  if (head_answers_ && head_.up() && !left_) watch_head(gap - slip);
  if (!left_) head_.tell(cluster::Heartbeat{self_.info.id}, out_);
  locals_.tick(now_, slip, out_);
  submissions_.tick(now_, slip, out_);
  regions_.tick(now_, out_);
  watch_drain(slip);
  for (const auto& refused : peers_.tick(now_, slip, out_)) peer_refused(refused.node, refused.error);
  for (const auto& done : packages_.tick(now_, slip, out_)) package_done(done);
  for (const auto& done : libraries_.tick(now_, slip, head_.up(), out_)) libraries_done(done);
  if (leaving_ && !left_ && now_ >= leave_deadline_) {
    for (auto& [id, process] : locals_.all()) {
      if (!process.is_parent) locals_.kill(process, process.leave_reason, out_);
    }
    finish_leaving();
  }
}

void NodeMachine::handle(const LeaveAsked& e) {
  leave(e.reason);
}

void NodeMachine::leave(const std::string& reason) {
  if (std::exchange(leaving_, true)) return;
  head_.tell(cluster::NodeLeaving{self_.info.id, reason}, out_);  // before it hears of the deaths here
  leave_deadline_ = now_ + self_.times.leave_grace;
  out_.push_back(Log{LogLevel::kInfo, "leaves: " + reason});
  for (auto& [id, process] : locals_.all()) {
    if (!process.is_driver) locals_.tell_to_leave(process, "its node leaves: " + reason, out_);
  }
  submissions_.leave(reason, now_, out_);
  leases_.close({ErrorCode::kUnavailable, "no process for light actors", "the node leaves: " + reason, ""},
                now_, out_);
  finish_leaving();
}

void NodeMachine::finish_leaving() {
  TROUPE_ASSERT(leaving_, "a node finishes leaving once it leaves");
  for (const auto& [id, process] : locals_.all()) {
    if (!process.is_parent) return;  // called again when it is gone
  }
  if (submissions_.any_runs()) return;
  // A program that ends at once after it has killed an actor: only this node repeats that.
  if (self_.info.gateway && head_.has_kills() && now_ < leave_deadline_) return;
  if (std::exchange(left_, true)) return;
  head_.tell(cluster::NodeLeft{self_.info.id, cluster::kLeftByItself}, out_);
  if (const LocalProcess* parent = locals_.parent(); parent != nullptr && parent->lives())
    out_.push_back(SendLocal{parent->id, wire::Leave{"the node has left"}, {}});
  out_.push_back(EndLoop{});
}

}  // namespace troupe::node
