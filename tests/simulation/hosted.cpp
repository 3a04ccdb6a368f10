#include "tests/simulation/hosted.hpp"

#include <algorithm>

#include "runtime/host/kept_states.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/tasks/tasks.hpp"
#include "tests/simulation/cluster.hpp"
#include "tests/simulation/direct.hpp"
#include "tests/simulation/rings.hpp"

namespace troupe::sim {
namespace {

Hosted* now_running = nullptr;

bool asks(const wire::FrameHeader& header, std::uint64_t operation) {
  return header.kind == wire::FrameKind::kCall && !header.actor && header.method == operation;
}

template <class T>
bool is(const Message& message) {
  static const std::size_t number = wire::Control(T{}).index();
  return message.header.kind == wire::FrameKind::kControl && message.header.id == number;
}

}  // namespace

/// The process's end of the socket. It breaks rules on purpose, where a test wants to see that found.
class Hosted::Channel final : public NodeChannel {
 public:
  explicit Channel(Hosted& owner) : owner_(owner) {}

  void start(ProcessAddress self, UniqueFd /*doorbell*/, Handlers handlers) override {
    handlers_ = std::move(handlers);
    owner_.to_node->on_room = [this] {
      if (!owner_.cluster.scenario.floor.forget_room) handlers_.on_room();
    };
    wire::FrameHeader header;
    header.from = self;
    const auto body = wire::encode_control(wire::Hello{}, header);
    owner_.to_node->send(header, body);
    owner_.cluster.world.every(owner_, seconds(1), "~pulse", [this] {
      if (!closed_ && !handlers_.on_pulse()) close();
    });
  }
  void stop() override { closed_ = true; }
  Sent send(const wire::FrameHeader& header, wire::ByteView body) override {
    if (closed_) return Sent::kClosed;
    if (header.kind != wire::FrameKind::kCredit && owner_.die_after_frames >= 0 &&
        owner_.die_after_frames-- == 0)
      owner_.cluster.world.kill(owner_, "in the middle of what it did");
    if (header.kind == wire::FrameKind::kControl) note_request(header, body);
    if (forgets_wait(header, body)) return Sent::kQueued;
    note_copy(header, body);
    const auto& broken = owner_.cluster.scenario.floor;
    if (broken.forget_saves && forgets_save(header, body)) return Sent::kQueued;
    if (broken.keep_leases && keeps_lease(header, body)) return Sent::kQueued;
    if (owner_.answers_itself(header)) return Sent::kQueued;
    if (broken.keep_credit && header.kind == wire::FrameKind::kCredit) return Sent::kQueued;
    if (broken.monitor_once && header.kind == wire::FrameKind::kMonitor &&
        !owner_.monitored_.insert(header.actor).second)
      return Sent::kQueued;
    const Sent sent = owner_.to_node->send(header, body);
    const bool told = sent == Sent::kFull && header.kind == wire::FrameKind::kControl;
    return broken.drop_unsent && told ? Sent::kQueued : sent;
  }
  void receive(Message message) {
    if (closed_) return;
    note_parts(message);
    if (owner_.cluster.scenario.floor.forget_lost_nodes && is<wire::NodeLost>(message)) return;
    if (takes_turn(message) && owner_.cluster.scenario.floor.ignore_turns) return;
    if (is<wire::Answer>(message)) {
      const auto answer = wire::decode_control(message.header, message.body).value();
      if (const auto asked = asked_.extract(std::get<wire::Answer>(answer).request))
        owner_.met(asked.mapped());
    }
    handlers_.on_message(std::move(message));
  }
  void node_closed() {
    if (close()) handlers_.on_closed("its node is gone");
  }

  /// As if who was asked had said so.
  void answer(const wire::FrameHeader& asked, wire::Bytes body) {
    const auto reply = std::make_shared<Message>(reply_to(asked, std::move(body)));
    owner_.cluster.world.after(owner_, Duration{0}, "answered by nobody",
                               [this, reply] { receive(std::move(*reply)); });
  }

 private:
  static Message reply_to(const wire::FrameHeader& asked, wire::Bytes body) {
    Message reply;
    reply.header = asked;
    reply.header.kind = wire::FrameKind::kReply;
    std::swap(reply.header.from, reply.header.to);
    reply.body = std::move(body);
    return reply;
  }
  /// False: it was closed before.
  bool close() {
    if (std::exchange(closed_, true)) return false;
    for (const auto& [request, expectation] : std::exchange(asked_, {})) owner_.met(expectation);
    return true;
  }
  /// What the node answers by itself comes once nobody is stopped any more; the head has to start, and to
  /// find CPUs.
  template <class T>
  static Duration bound_of() {
    return std::is_same_v<T, wire::RegionAsk> || std::is_same_v<T, wire::RingAsk> ? seconds(25) : seconds(80);
  }
  /// Processes that never stop submitting ask for more workers than there are CPUs: theirs is a share.
  template <class T>
  bool may_wait_for_good(const T& ask) const {
    if constexpr (std::is_same_v<T, wire::SpawnAsk>)
      return owner_.cluster.scenario.greedy_tasks && ask.spec.is_worker_of_tasks();
    return false;
  }
  /// Every request is answered, but one that was taken back.
  void note_request(const wire::FrameHeader& header, wire::ByteView body) {
    const auto control = wire::decode_control(header, body).value();
    std::visit(
        [this]<class T>(const T& ask) {
          if constexpr (std::is_same_v<T, wire::SpawnCancel>) {
            if (const auto asked = asked_.extract(ask.request)) owner_.met(asked.mapped());
          } else if constexpr (requires { ask.request; }) {
            // 0: a kill that nobody waits for
            if (ask.request != 0 && !asked_.contains(ask.request) && !may_wait_for_good(ask))
              asked_[ask.request] = owner_.expect("an answer of its node", bound_of<T>());
          }
        },
        control);
  }

  void note_copy(const wire::FrameHeader& header, wire::ByteView body) {
    Copies& copies = owner_.cluster.copies;
    if (asks(header, objects::kPart)) {
      const auto part = wire::decode<objects::PartAsk>(body).value();
      copies.under_way({header.to, part.number}, owner_);
      parts_[header.id] = {header, part};
      const auto of_it = std::count_if(parts_.begin(), parts_.end(), [&](const auto& one) {
        return one.second.header.to == header.to && one.second.part.number == part.number;
      });
      copies.window(static_cast<std::size_t>(of_it), owner_);
    } else if (asks(header, objects::kCopied)) {
      const auto told = wire::decode<objects::CopiedTell>(body).value();
      copies.ended({header.to, told.number}, owner_, told.ok);
    }
  }

  /// Parts that it asked for have come, or do not.
  void note_parts(const Message& message) {
    if (message.header.kind == wire::FrameKind::kReply) parts_.erase(message.header.id);
    if (message.header.kind != wire::FrameKind::kControl || parts_.empty()) return;
    const auto control = wire::decode_control(message.header, message.body).value();
    const auto* broken = std::get_if<wire::NodeLost>(&control);
    const auto* node = std::get_if<wire::NodeDown>(&control);
    const auto* process = std::get_if<wire::ProcessDown>(&control);
    for (auto at = parts_.begin(); at != parts_.end();) {
      const ProcessAddress& owner = at->second.header.to;
      const bool is_over = (broken != nullptr && broken->node == owner.node) ||
                           (node != nullptr && node->node == owner.node) ||
                           (process != nullptr && process->process == owner);
      const auto next = std::next(at);
      if (is_over) {
        const auto lost = parts_.extract(at).mapped();
        if (broken != nullptr && owner_.cluster.scenario.floor.take_lost_parts)
          handlers_.on_message(reply_to(lost.header, wire::Bytes(lost.part.bytes)));
      }
      at = next;
    }
  }

  void say_done(std::uint64_t request) {
    const auto said = std::make_shared<Message>();
    said->body = wire::encode_control(wire::Answer{.request = request, .ok = true}, said->header);
    owner_.cluster.world.after(owner_, Duration{0}, "said to be done",
                               [this, said] { receive(std::move(*said)); });
  }

  /// False: it is no lease that ends.
  bool keeps_lease(const wire::FrameHeader& header, wire::ByteView body) {
    if (header.kind != wire::FrameKind::kControl) return false;
    const auto control = wire::decode_control(header, body).value();
    const auto* ask = std::get_if<wire::KillAsk>(&control);
    if (ask == nullptr || !ask->reason.starts_with("its lease ended")) return false;
    say_done(ask->request);
    return true;
  }

  /// Whether a worker is to be given back for others.
  bool takes_turn(const Message& message) {
    if (!is<wire::ActorLeaves>(message)) return false;
    const auto control = wire::decode_control(message.header, message.body).value();
    const bool is_turn = std::get<wire::ActorLeaves>(control).for_others;
    owner_.cluster.submissions.turns += is_turn ? 1 : 0;
    return is_turn;
  }

  /// False: it says nothing of a task that waits, or is to say it.
  bool forgets_wait(const wire::FrameHeader& header, wire::ByteView body) {
    static const std::size_t number = wire::Control(wire::TaskWaits{}).index();
    if (header.kind != wire::FrameKind::kControl || header.id != number) return false;
    const bool waits = wire::decode<wire::TaskWaits>(body).value().waits;
    owner_.has_waited = true;
    owner_.cluster.submissions.waits += waits ? 1 : 0;
    const auto& broken = owner_.cluster.scenario.floor;
    return waits ? broken.forget_waits : broken.wait_for_good;
  }

  /// False: it is nothing that is saved.
  bool forgets_save(const wire::FrameHeader& header, wire::ByteView body) {
    if (asks(header, kKeepState)) {
      answer(header, {});
      return true;
    }
    const auto control = header.kind == wire::FrameKind::kControl ? wire::decode_control(header, body)
                                                                  : Result<wire::Control>(ErrorInfo{});
    const auto* ask = control ? std::get_if<wire::SaveAsk>(&*control) : nullptr;
    if (ask == nullptr) return false;
    say_done(ask->request);
    return true;
  }

  Hosted& owner_;
  Handlers handlers_;
  bool closed_ = false;
  std::map<std::uint64_t, std::uint64_t> asked_;  ///< what is expected, by request
  struct AskedPart {
    wire::FrameHeader header;
    objects::PartAsk part;
  };
  std::map<std::uint64_t, AskedPart> parts_;  ///< of copies that are under way to it, by call
};

Hosted::Hosted(Cluster& in, Node& on, ProcessId as, std::string process_name, int on_host)
    : Process(std::move(process_name), on_host),
      cluster(in),
      node(&on),
      process(as),
      spill_disk(std::make_shared<SimSpillDisk>(in)) {
  to_node = std::make_shared<Pipe>(in.world, *this, on, in.scenario.link_bytes);
  to_node->deliver = [this](Message message) { node->on_local_frame(process, std::move(message)); };
  to_node->on_room = [] {};
  from_node = std::make_shared<Pipe>(in.world, on, *this, in.scenario.link_bytes);
  from_node->deliver = [this](Message message) { receive(std::move(message)); };
  from_node->on_room = [this] { node->room_for(process); };
}

bool Hosted::answers_itself(const wire::FrameHeader& header) {
  const auto& broken = cluster.scenario.floor;
  if (broken.take_back_all && asks(header, tasks::kTakeTaskBack)) {
    channel_->answer(header, wire::encode(true));
    return true;
  }
  if (broken.forget_dead_borrowers && asks(header, objects::kStillMakes)) {
    channel_->answer(header, wire::encode(objects::MakingTell{}));
    return true;
  }
  return false;
}

Hosted::~Hosted() = default;

Hosted& Hosted::current() {
  TROUPE_ASSERT(now_running != nullptr, "a user's code runs in a process");
  return *now_running;
}

Hosted* Hosted::running() {
  return now_running;
}

ProcessAddress Hosted::address() const {
  return {node->info.id, process};
}

Instant Hosted::now() const {
  return cluster.now_at(*this);
}

void Hosted::run(const std::function<void()>& what) {
  const NoWaitScope one_thread;
  const ProcessGateScope gate(runtime.get());
  Hosted* const before = std::exchange(now_running, this);
  what();
  if (runtime != nullptr && alive) take_turns();
  now_running = before;
}

void Hosted::receive(Message message) {
  if (is<wire::Configure>(message)) {
    const auto control = wire::decode_control(message.header, message.body).value();
    // It loads its libraries.
    cluster.world.after(*this, cluster.world.between(milliseconds(5), milliseconds(100)), "process up",
                        [this, configure = std::get<wire::Configure>(control)] { boot(configure); });
  } else if (channel_ == nullptr) {
    inbox_.push_back(std::move(message));
  } else {
    channel_->receive(std::move(message));
  }
}

void Hosted::boot(const wire::Configure& configure) {
  process = configure.process;
  ProcessConfig config;
  config.node = configure.node;
  config.process = configure.process;
  config.job = configure.job;
  config.label = configure.label;
  config.host = configure.host;
  config.package = configure.package;
  config.driver = configure.driver;
  ProcessFloor floor;
  auto channel = std::make_unique<Channel>(*this);
  channel_ = channel.get();
  floor.channel = std::move(channel);
  floor.make_rings = [this](NodeId, Rings::Handlers handlers) {
    return std::make_unique<SimRings>(
        cluster.world, *this, [this](ProcessId peer) { return node->ring(process, peer); },
        std::move(handlers));
  };
  floor.light_ids = cluster.ids.next();
  floor.limits = cluster.scenario.limits;
  floor.object_limits = cluster.scenario.object_limits;
  if (cluster.scenario.floor.widen_window) floor.object_limits.parts_under_way *= 2;
  if (cluster.scenario.floor.ask_once) floor.object_limits.broken_links = 0;
  floor.spill_disk = spill_disk;
  if (!cluster.scenario.links_alone) floor.direct_connections = std::make_unique<SimDirect>(*this);
  floor.threads = false;
  runtime = std::make_unique<troupe::Process>(std::move(config), std::move(floor),
                                              troupe::Process::Handlers{[] {}, [](const wire::Output&) {}});
  first_ = runtime->turns().clock().current_time - now();
  const ProcessGateScope gate(runtime.get());
  up();
  for (Message& message : std::exchange(inbox_, {})) channel_->receive(std::move(message));
}

void Hosted::node_closed() {
  lost_node_ = true;
  to_node->close();
  from_node->close();
  if (channel_ != nullptr) channel_->node_closed();
}

/// One turn after another, in the seed's order; now and then it takes a while until the next. An actor that
/// waits in its turn holds up none of the others.
void Hosted::take_turns() {
  auto& coordinator = runtime->turns();
  auto& clock = coordinator.clock();
  clock.advance_time(std::max<caf::timespan>(caf::timespan(0), first_ + now() - clock.current_time));
  const auto goes_on = [this, &coordinator] { return alive && coordinator.has_job() && !turn_is_due_; };
  while (goes_on()) {
    const std::uint64_t round = ++rounds_;
    cluster.threads.run(*this, [this, round, goes_on] {
      while (rounds_ == round && goes_on()) take_turn();
    });
  }
  if (!alive) return;
  if (runtime->is_told_to_leave()) told_to_leave();
  if (alive) wake_for_timers();
}

void Hosted::take_turn() {
  if (cluster.world.random.below(16) == 0) {
    turn_is_due_ = true;
    cluster.world.after(*this, cluster.world.between(microseconds(1), microseconds(300)), "~turn",
                        [this] { turn_is_due_ = false; });
    return;
  }
  auto& jobs = runtime->turns().jobs;
  std::swap(jobs.front(), jobs[cluster.world.random.below(jobs.size())]);
  runtime->turns().run_once();
}

void Hosted::told_to_leave() {
  cluster.world.kill(*this, "told to leave");
}

void Hosted::wake_for_timers() {
  const auto& due = runtime->turns().clock().schedule();
  if (due.empty()) return;
  const Duration left = std::max(Duration{0}, Duration(due.begin()->first - (first_ + now())));
  const Instant at = cluster.world.now() + left;
  if (woken_at_ > cluster.world.now() && woken_at_ <= at) return;
  woken_at_ = at;
  cluster.world.after(*this, left, "~timer", [] {});
}

std::uint64_t Hosted::expect(std::string what, Duration bound) {
  expected[++expectations_] = {std::move(what), cluster.world.now(), bound};
  return expectations_;
}

void Hosted::met(std::uint64_t expectation) {
  if (expected.erase(expectation) == 0 && alive) cluster.world.violation(name + " is told a second time");
}

void Hosted::tear_down() {
  if (std::exchange(torn_down_, true)) return;
  alive = false;
  to_node->close();
  from_node->close();
  const NoWaitScope one_thread;
  const ProcessGateScope gate(runtime.get());
  Hosted* const before = std::exchange(now_running, this);
  cluster.threads.drain(*this);
  ended();
  std::default_delete<troupe::Process>()(runtime.get());  // what ends with it still refers to it
  [[maybe_unused]] auto* gone = runtime.release();
  now_running = before;
}

}  // namespace troupe::sim
