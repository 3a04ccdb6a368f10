#include "runtime/node/node.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/core/log.hpp"
#include "runtime/link/ring/ring.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "runtime/node/memory_look.hpp"
#include "runtime/node/pulse.hpp"
#include "runtime/wire/package_name.hpp"

namespace troupe {

using namespace node;

Node::Node(EventLoop& loop, Transport& transport, Options options)
    : loop_(loop),
      transport_(transport),
      options_(std::move(options)),
      id_(options_.config.id),
      authorizer_(std::make_shared<Authorizer>(clock_)),
      jobs_(loop, [this](NodeEvent event) { tell_end(std::move(event)); }),
      outputs_(loop),
      memory_looks_(loop),
      title_looks_(loop) {}

Node::~Node() {
  head_.reset();  // no handler runs after: they post about what goes away below
  server_.reset();
  peers_.reset();
}

namespace {

constexpr Duration kMemoryLook = std::chrono::milliseconds(500);
constexpr Duration kMemoryPatience = std::chrono::seconds(5);  ///< some milliseconds a GiB are usual

}  // namespace

// Coming up.

Result<void> Node::start(OnMember on_member) {
  on_member_ = std::move(on_member);
  if (auto listening = listen(); !listening) return listening;
  Self self;
  self.info = {id_,
               options_.config.name,
               address_,
               to_string(options_.keys.public_key()),
               options_.config.cpu_e4,
               options_.config.gateway,
               options_.gpus,
               options_.other};
  self.host = server_->address().host;
  self.package = options_.config.package;
  auto limits = limits_of_this_machine();
  if (!limits) return limits.error();
  self.limits = *limits;
  const std::size_t stuck_bytes = self.limits.stuck_bytes;
  machine_ = std::make_unique<NodeMachine>(std::move(self), random_);
  const auto tell_machine = [this](NodeEvent event) { tell(std::move(event)); };
  const auto refuse_frame = [this](const wire::FrameHeader& header, const ErrorInfo& error) {
    refuse(header, error);
  };
  locals_ = std::make_unique<LocalLinks>(
      loop_, stuck_bytes, std::exchange(options_.copies, std::nullopt),
      LocalLinks::Hooks{
          [this](NodeEvent event) { tell_end(std::move(event)); },
          [this](ProcessId process, Message message) { on_local_frame(process, std::move(message)); },
          refuse_frame,
          [this](ProcessId process, bool error, const std::string& lines) {
            outputs_.wrote(process, error, lines);
          }});
  peers_ = std::make_unique<PeerLinks>(loop_, transport_, options_.keys, stuck_bytes,
                                       PeerLinks::Hooks{tell_machine, refuse_frame});
  if (auto opened = jobs_.open(options_.config.folder); !opened) return opened;
  if (!jobs_.folder().empty()) {
    outputs_.open(jobs_.folder() + "/.workers");
    tell(ExecutablesFound{packages_.open(
        jobs_.folder() + "/.executables", [this](const std::string& hash, Result<UniqueFd> executable) {
          loop_.post([this, hash, read = std::make_shared<Result<UniqueFd>>(std::move(executable))] {
            if (read->ok()) packages_.keep(hash, *std::move(*read));
            tell(PartTaken{hash, 0, read->ok(),
                           read->ok() ? std::nullopt : std::optional<ErrorInfo>(read->error())});
          });
        })});
  }
  if (auto connected = connect_head(transport_); !connected) return connected;
  loop_.watch(options_.parent.fd(), [this](bool, bool, bool) { parent_readable(); });
  loop_.every(machine_->self().times.tick, [this] {
    tell(Tick{});
    locals_->retry_output();
    jobs_.tick();
    oom_deaths_.tick(clock_.now());
  });
  loop_.every(kMemoryLook, [this] { watch_memory(); });
  return {};
}

/// Costs nothing while nobody has asked for memory, and the loop little.
void Node::watch_memory() {
  if (looks_at_memory_) return;
  auto claims = machine_->memory_claims();
  if (std::none_of(claims.begin(), claims.end(), [](const auto& c) { return c.use.asked > 0; })) return;
  for (MemoryClaim& claim : claims)
    claim.pid = claim.process ? locals_->pid_of(claim.process) : jobs_.pid_of(claim.submission);
  looks_at_memory_ = true;
  const auto look = [this, offered = memory_of(options_.other),
                     claims = std::move(claims)](StuckProcesses& stuck) {
    return LookThread::Then([this, measured = look_at_memory(offered, claims, stuck)] {
      looks_at_memory_ = false;
      if (measured) tell(*measured);
    });
  };
  memory_looks_.post(look, kMemoryPatience, [this] { looks_at_memory_ = false; });
}

Result<void> Node::listen() {
  const auto endpoint = parse_endpoint(options_.config.address);
  if (!endpoint) return endpoint.error();
  // Everything is told in the loop's thread; nothing can come before the machine is there, since no peer is
  // allowed.
  ServerHandlers handlers;
  handlers.on_message = [this](const PeerName& from, wire::Bytes frame) {
    inbound_bytes_ += frame.size();
    loop_.post([this, from, frame = std::move(frame)] {
      on_peer_frame(from, frame);
      inbound_bytes_ -= frame.size();
    });
  };
  handlers.may_receive = [this] { return inbound_bytes_ < Limits{}.inbound_bytes; };
  handlers.on_session = [this](const PeerName& from) {
    loop_.post([this, node = node_of(from)] { tell(PeerCameIn{node}); });
  };
  handlers.on_gone = [this](const PeerName& from, const std::string& why) {
    loop_.post([this, node = node_of(from), why] { tell(PeerLost{node, false, why}); });
  };
  handlers.on_room = [](const PeerName&) {};
  // Another node may knock before the head has told us of it.
  ServeOptions serve{*endpoint, options_.keys, authorizer_, LogLevel::kInfo};
  auto server = transport_.serve(std::move(serve), std::move(handlers));
  if (!server) return server.error();
  server_ = *std::move(server);
  address_ = to_string(server_->address());
  return {};
}

Result<void> Node::connect_head(Transport& over) {
  const auto endpoint = parse_endpoint(options_.config.head);
  if (!endpoint) return endpoint.error();
  ClientHandlers handlers;
  handlers.on_message = [this](wire::Bytes frame) {
    loop_.post([this, frame = std::move(frame)] { on_head_frame(frame); });
  };
  handlers.on_state = [this](LinkState state, const std::string& why) {
    loop_.post([this, state, why] {
      if (state == LinkState::kConnected) tell(HeadConnected{});
      if (state == LinkState::kConnecting) tell(HeadUnreachable{options_.config.head + ": " + why});
      if (state == LinkState::kRefused) tell(HeadRefused{why});
      if (state == LinkState::kLost) {
        tell(HeadLost{why});
        for (auto& event : std::exchange(unsent_, {})) tell(HeadUnsent{std::move(event)});
      }
    });
  };
  handlers.on_room = [this] { loop_.post([this] { flush_head(); }); };
  // Not waited for: meanwhile this node hears that its launcher is gone.
  ConnectOptions connect{*endpoint, options_.head_key, options_.keys, Duration::zero()};
  auto client = over.connect(std::move(connect), std::move(handlers));
  if (!client) return client.error();
  head_ = *std::move(client);
  return {};
}

void Node::parent_readable() {
  Message message;
  SocketLink::Got got{};
  while ((got = options_.parent.receive(message)) == SocketLink::Got::kMessage) {
    const auto said = wire::decode_control(message.header, message.body);
    const auto* asked = said ? std::get_if<wire::Leave>(&*said) : nullptr;
    if (asked != nullptr) told_to_leave_ = asked->reason;
    const auto* to_drain = said ? std::get_if<wire::Drain>(&*said) : nullptr;
    if (to_drain != nullptr && machine_ != nullptr)
      drain(std::chrono::milliseconds(to_drain->grace_ms), to_drain->reason);
  }
  if (got != SocketLink::Got::kClosed) return;
  loop_.forget(options_.parent.fd());
  lost_parent_ = !told_to_leave_;
  leave(told_to_leave_.value_or("its launcher is gone"));
}

bool Node::tell_parent(const wire::Control& message) {
  return troupe::send_control(options_.parent, {id_, {}}, message);
}

void Node::pulse() {
  send_pulse(options_.parent);
}

void Node::serve_parent() {
  if (!options_.config.hosts_driver) return;
  loop_.forget(options_.parent.fd());
  tell(DriverAttached{});
}

void Node::leave(const std::string& reason) {
  if (machine_ == nullptr) return loop_.stop();
  tell(LeaveAsked{reason});
}

// Events and actions.

void Node::tell(NodeEvent event) {
  events_.push_back(std::move(event));
  if (std::exchange(busy_, true)) return;
  while (!events_.empty()) {
    const NodeEvent next = std::move(events_.front());
    events_.pop_front();
    carry_out(machine_->on(next, clock_.now()));
  }
  busy_ = false;
}

void Node::carry_out(Actions actions) {
  for (auto& action : actions) std::visit([this](auto& a) { act(a); }, action);
}

void Node::act(ConnectHeadAnew& /*a*/) {
  was_cut_off_ = true;
  head_.reset();
  for (auto& event : std::exchange(unsent_, {})) tell(HeadUnsent{std::move(event)});
  if (options_.make_transport) fresh_.push_back(options_.make_transport());
  const auto connected = connect_head(fresh_.empty() ? transport_ : *fresh_.back());
  if (!connected) log(LogLevel::kError, "cannot connect to the head: " + connected.error().message());
}
void Node::act(TellMember& a) {
  if (on_member_) std::exchange(on_member_, nullptr)(std::move(a.joined));
}
void Node::act(EndLoop& /*a*/) {
  loop_.stop();  // links take their last words to the peer when they are destroyed
}
void Node::act(node::Log& a) {
  log(a.level, a.text);
}
void Node::act(AllowPeer& a) {
  if (const auto key = parse_public_key(a.public_key)) authorizer_->allow(*key, name_of(a.node));
}
void Node::act(RevokePeer& a) {
  if (const auto key = parse_public_key(a.public_key)) authorizer_->revoke(*key);
}

void Node::act(StartWorker& a) {
  const auto program = packages_.program(wire::hash_in(a.package), wire::hash_in(options_.config.package));
  outputs_.began(a);
  const auto started =
      program ? locals_->start(a, *program, libraries_for(a)) : Result<void>(program.error());
  if (!started) tell(WorkerNotStarted{a.process, started.error()});
}

/// Its driver's; else those of another one here that came with the same; else those that were fetched: the
/// driver of a detached actor may be a later one, elsewhere, or gone.
std::string Node::libraries_for(const StartWorker& a) const {
  const std::string package = wire::libraries_in(a.package);
  const auto own = libraries_.find(a.driver.process);
  if (a.driver.node == id_ && own != libraries_.end() && own->second.package == package)
    return own->second.folder;
  if (package.empty()) return "";
  const auto same = std::find_if(libraries_.begin(), libraries_.end(),
                                 [&](const auto& one) { return one.second.package == package; });
  return same != libraries_.end() ? same->second.folder : jobs_.libraries_of(kLibrariesOf + package);
}

void Node::act(AdoptDriver& a) {
  if (a.connection == 0) return locals_->adopt(a.process, std::move(options_.parent));
  auto knock = jobs_.take_knock(a.connection);
  if (!knock) return tell(ProcessEnded{a.process, "the driver is gone"});
  packages_.keep(wire::hash_in(a.package), std::move(knock->executable));
  if (std::string folder = jobs_.libraries_of(knock->id); !folder.empty())
    libraries_[a.process] = {wire::libraries_in(a.package), std::move(folder)};
  locals_->adopt(a.process, std::move(knock->link));
}

void Node::act(DropKnock& a) {
  if (auto knock = jobs_.take_knock(a.connection)) knock->link.shutdown(a.reason);
}

void Node::act(MakeRegion& a) {
  const auto made = regions_.make(a);
  tell(RegionMade{a.region, made ? std::nullopt : std::optional(made.error())});
}

void Node::act(MakeRing& a) {
  const auto make = [&]() -> Result<void> {
    // Sparse: a page that neither end ever writes costs nothing.
    auto memory = SharedMemory::create("troupe-ring", 2 * kRingBytes, false);
    if (!memory) return memory.error();
    const auto descriptors = [&](ProcessId other) -> Result<std::vector<UniqueFd>> {
      UniqueFd ring(::fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0));
      if (!ring) return io_error("no ring", errno, "raise ulimit -n");
      auto bell = locals_->doorbell(other);
      if (!bell) return bell.error();
      std::vector<UniqueFd> fds;
      fds.push_back(std::move(ring));
      fds.push_back(*std::move(bell));
      return fds;
    };
    auto second = descriptors(a.first);
    auto first = descriptors(a.second);
    if (!first || !second) return first ? second.error() : first.error();
    send_control(a.second, a.offer_to_second, *std::move(second));
    send_control(a.first, a.offer_to_first, *std::move(first));
    return {};
  };
  const auto made = make();
  tell(RingMade{a.first, a.second, a.request, made ? std::nullopt : std::optional(made.error())});
}

void Node::act(GivePart& a) {
  SendPeer send{{a.to, {}}, packages_.read(a.ask, a.own), {}, {}, a.hold};
  send_peer(send);
}

// Local processes.

void Node::act(SendLocal& a) {
  if (a.attach.kind == Attach::kNothing) return send_control(a.process, a.message, {});
  auto fd =
      a.attach.kind == Attach::kRegion ? regions_.descriptor(a.attach.region) : locals_->life_lock(a.process);
  std::vector<UniqueFd> fds;
  if (fd) {
    fds.push_back(*std::move(fd));
  } else if (auto* answer = std::get_if<wire::Answer>(&a.message)) {
    answer->ok = false;
    answer->error = fd.error();
  }
  send_control(a.process, a.message, std::move(fds));
}

void Node::send_control(ProcessId process, const wire::Control& message, std::vector<UniqueFd> fds) {
  wire::FrameHeader header;
  header.from.node = id_;
  header.to = {id_, process};
  const auto body = wire::encode_control(message, header);
  locals_->send(process, header, body, std::move(fds));
}

void Node::on_local_frame(ProcessId process, Message message) {
  dispatch({id_, process}, message.header, message.body, std::move(message.fds));
}

// Frames.

void Node::dispatch(Source source, const wire::FrameHeader& header, wire::ByteView body,
                    std::vector<UniqueFd> fds) {
  auto route = machine_->route(source, header, wire::kHeaderBytes + body.size(), clock_.now());
  switch (route.verdict) {
    case Verdict::kToProcess:
      locals_->send(route.to.process, header, body);
      break;
    case Verdict::kToPeer:
      if (!peers_->send(route.to.node, header, wire::whole_frame(header, body)))
        tell_incoming(route.to.node, "an answer could not be sent: the link is full or broke");
      break;
    case Verdict::kHold:
      peers_->hold(route.to.node, header, wire::whole_frame(header, body));
      break;
    case Verdict::kToNode:
      take(source, header, body, std::move(fds));
      break;
    case Verdict::kRefuse:
      carry_out(std::exchange(route.actions, {}));  // a death is told before what it refuses
      refuse(header, route.error);
      break;
    case Verdict::kBreach:
      if (source.node == id_ && source.process) {
        tell(LocalBroke{source.process, route.error.why});
      } else {
        log(LogLevel::kError, "refused a frame of node " + to_string(source.node) + ": " + route.error.why);
      }
      break;
    case Verdict::kDrop:
      break;
  }
  carry_out(std::move(route.actions));
}

void Node::take(Source source, const wire::FrameHeader& header, wire::ByteView body,
                std::vector<UniqueFd> fds) {
  auto message = wire::decode_control(header, body);
  const bool local = source.node == id_;
  if (!message) {
    if (local) return tell(LocalBroke{source.process, message.error().message()});
    return log(LogLevel::kError, "node " + to_string(source.node) + ": " + message.error().message());
  }
  if (!local) return tell(PeerSaid{header, *std::move(message)});
  const std::size_t count = fds.size();
  if (std::holds_alternative<wire::Hello>(*message)) locals_->keep_fds(source.process, std::move(fds));
  tell(LocalSaid{source.process, *std::move(message), count});
}

void Node::refuse(const wire::FrameHeader& header, const ErrorInfo& error) {
  if (!wire::wants_reply(header) || !header.from.process) return;
  wire::FrameHeader reply;
  const auto body = wire::refusal(header, error, reply);
  if (header.from.node == id_) return locals_->send(header.from.process, reply, body);
  dispatch({id_, {}}, reply, body);
}

// Peers.

void Node::on_peer_frame(const PeerName& name, const wire::Bytes& frame) {
  const NodeId node = node_of(name);
  const auto header = wire::decode_header(frame);
  if (!header)
    return log(LogLevel::kError, "refused a frame of node " + name + ": " + header.error().message());
  dispatch({node, {}}, *header, wire::ByteView(frame).subspan(wire::kHeaderBytes));
}

void Node::send_peer(const SendPeer& send) {
  wire::FrameHeader header;
  header.from = {id_, send.from};
  header.to = send.to;
  header.job = send.job;
  const auto body = wire::encode_control(send.message, header);
  auto frame = wire::whole_frame(header, body);
  if (send.hold) return peers_->hold(send.to.node, header, std::move(frame));
  if (!peers_->send(send.to.node, header, std::move(frame)))
    tell_incoming(send.to.node, "a message could not be sent: the link is full or broke");
}

void Node::tell_incoming(NodeId node, const std::string& reason) {
  if (server_ != nullptr)  // kClosed: it has no connection to us any more, and knows
    server_->send(name_of(node), wire::control_frame(wire::NodeLost{id_, reason}, {id_, {}}));
}

// The head.

void Node::on_head_frame(const wire::Bytes& frame) {
  const auto header = wire::decode_header(frame);
  if (!header) return log(LogLevel::kError, "the head: " + header.error().message());
  auto message = wire::decode_control(*header, wire::ByteView(frame).subspan(wire::kHeaderBytes));
  if (!message) return log(LogLevel::kError, "the head: " + message.error().message());
  if (auto* said = std::get_if<wire::FromHead>(&*message)) tell(HeadSaid{std::move(said->action)});
  if (const auto* ask = std::get_if<wire::ReadLog>(&*message)) read_log(*ask);
  if (auto* part = std::get_if<wire::PackagePart>(&*message)) tell(HeadGavePart{std::move(*part)});
}

void Node::act(AskJobPart& a) {
  if (head_ != nullptr) head_->send(wire::control_frame(a.ask, {id_, {}}));
}

void Node::act(TellHead& a) {
  unsent_.push_back(std::move(a.event));
  flush_head();
}

void Node::flush_head() {
  while (!unsent_.empty()) {
    const Sent sent = head_ == nullptr
                          ? Sent::kClosed
                          : head_->send(wire::control_frame(wire::ToHead{unsent_.front()}, {id_, {}}));
    if (sent == Sent::kFull) return;  // on_room
    auto event = std::move(unsent_.front());
    unsent_.pop_front();
    if (sent == Sent::kClosed) tell(HeadUnsent{std::move(event)});
    if (sent == Sent::kTooLarge) log(LogLevel::kError, "a message to the head is too long");
  }
}

}  // namespace troupe
