#include "scheduler/head/head.hpp"

#include <algorithm>
#include <iterator>

#include "runtime/core/log.hpp"
#include "scheduler/head/addressing.hpp"
#include "scheduler/store/records.hpp"

namespace troupe {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(250);

}  // namespace

/// What admission writes goes the way of all writes: the answer to it is held until it is durable.
class Head::AdmissionStorage final : public Storage {
 public:
  explicit AdmissionStorage(Head& head) : head_(head) {}

  Result<void> apply(const StoreBatch& batch) override {
    if (const auto& trouble = head_.machine_.trouble()) return *trouble;
    if (auto bounded = check_bounds(batch); !bounded) return bounded;
    head_.carry_out(head_.machine_.store(batch, head_.clock_.now()));
    return {};
  }
  // Only when the head starts, before anything is written.
  Result<std::optional<Bytes>> get(std::string_view key) override { return head_.options_.storage->get(key); }
  Result<std::vector<StoreEntry>> scan(std::string_view prefix) override {
    return head_.options_.storage->scan(prefix);
  }

 private:
  Head& head_;
};

Head::Head(EventLoop& loop, Transport& transport, Options options)
    : loop_(loop),
      transport_(transport),
      options_(std::move(options)),
      machine_(options_.cluster, random_),
      admission_storage_(std::make_unique<AdmissionStorage>(*this)),
      packages_(loop, options_.packages),
      inbox_(options_.inbox) {}

Head::~Head() {
  server_.reset();
  store_.reset();  // waits for the write under way
}

Result<void> Head::start() {
  if (auto restored = restore(); !restored) return restored;
  ServerHandlers handlers;
  handlers.on_message = [this](const PeerName& from, wire::Bytes frame) {
    on_message(from, std::move(frame));
  };
  // A node says NodeJoined itself, and that it is gone is no death: heartbeats decide.
  handlers.on_session = [this](const PeerName& who) {
    if (who.starts_with(kClientPrefix)) loop_.post([this, who] { client_came(who); });
  };
  handlers.on_gone = [this](const PeerName& who, const std::string&) {
    if (who.starts_with(kClientPrefix)) loop_.post([this, who] { client_went(who); });
  };
  handlers.on_room = [](const PeerName&) {};  // found at its next heartbeat
  auto server = transport_.serve({options_.address, options_.keys, options_.authorizer}, std::move(handlers));
  if (!server) return server.error();
  server_ = *std::move(server);
  address_ = to_string(server_->address());
  loop_.every(kTick, [this] {
    machine_.set_wall_clock(wall_clock_ms());
    carry_out(machine_.tick(clock_.now()));
    tick_clients();
    remove_expired_keys();
    end_actors_of_strangers();
  });
  return {};
}

Result<void> Head::restore() {
  auto entries = options_.storage->scan("");
  if (!entries) return entries.error();
  std::vector<cluster::Record> records;
  for (const auto& entry : *entries) {
    if (entry.key.starts_with("security/")) continue;
    auto record = decode_record(entry.value);
    if (record && cluster::key_of(*record) != entry.key)
      record = ErrorInfo{ErrorCode::kBadInput, "refused a record",
                         "it is that of '" + cluster::key_of(*record) + "'", ""};
    if (!record) {
      return ErrorInfo{
          ErrorCode::kCorrupt, "cannot read the head's store at '" + entry.key + "'", record.error().why,
          record.error().todo.empty() ? "restore the folder from a copy, or start with an empty one"
                                      : record.error().todo};
    }
    records.push_back(*std::move(record));
  }
  store_ = std::make_unique<StoreThread>(*options_.storage, [this](Result<void> how, Duration took) {
    loop_.post([this, how = std::move(how), took] {
      count_write(took);
      carry_out(machine_.written(how, clock_.now()));
    });
  });
  machine_.set_wall_clock(wall_clock_ms());
  auto restored = machine_.restore(std::move(records), clock_.now());
  auto admission = Admission::open(*admission_storage_, options_.authorizer, clock_, current_boot_id());
  if (!admission) return admission.error();
  admission_ = *std::move(admission);
  const auto is_named = [this](const std::string& id) {
    return machine_.cluster().submissions().names_package(id);
  };
  // A disk that is full ends nothing: jobs without a package can be submitted.
  if (const auto opened = packages_.open(is_named); !opened) log(LogLevel::kError, opened.error().message());
  carry_out(std::move(restored));
  for (const auto& [key, peer] : admission_->peers()) {
    const NodeId node{std::strtoull(peer.name.c_str(), nullptr, 16)};
    if (!peer.name.starts_with(kMachinePrefix) && !machine_.cluster().nodes().contains(node))
      expire_key(node);
  }
  shut_out_nodes_of_strangers();
  stop_jobs_of_strangers();
  return {};
}

void Head::count_write(Duration took) {
  figures_.write_times.resize(std::size(wire::kWriteBounds) + 1);
  const auto at =
      std::lower_bound(std::begin(wire::kWriteBounds), std::end(wire::kWriteBounds), to_seconds(took)) -
      std::begin(wire::kWriteBounds);
  ++figures_.write_times[static_cast<std::size_t>(at)];
  figures_.write_ns += took.count();
}

void Head::refused_frame(const PeerName& from, const std::string& why) {
  refusals_("refused a frame of " + from + ": " + why, clock_.now());
}

/// In the transport's thread.
void Head::on_message(const PeerName& from, wire::Bytes frame) {
  const std::size_t bytes = frame.size();
  if (!inbox_.take(from, bytes)) return;
  loop_.post([this, from, bytes, frame = std::move(frame)] {
    ++figures_.messages;
    figures_.message_bytes += bytes;
    if (options_.authorizer->knows(from)) {
      on_frame(from, frame);
    } else {  // it waited here while that was removed
      refused_frame(from, "its key is let in no more");
    }
    if (!inbox_.done(from, bytes)) return;
    const NodeId node{std::strtoull(from.c_str(), nullptr, 16)};
    if (machine_.cluster().nodes().contains(node))
      send(cluster::RequestRegistration{node, "it spoke too fast, and not all of it was heard"});
  });
}

void Head::on_frame(const PeerName& from, wire::ByteView frame) {
  const auto header = wire::decode_header(frame);
  if (!header) return refused_frame(from, header.error().message());
  if (header->kind != wire::FrameKind::kControl) return refused_frame(from, "it is no control frame");
  auto message = wire::decode_control(*header, frame.subspan(wire::kHeaderBytes));
  if (!message) return refused_frame(from, message.error().message());
  if (const auto* to_head = std::get_if<wire::ToHead>(&*message)) return on_event(from, to_head->event);
  if (!on_job_ask(from, *message)) on_ask(from, *message);
}

void Head::on_event(const PeerName& from, const cluster::ClusterEvent& event) {
  const auto node = sender_of(event);
  if (!node || to_hex(node->value) != from) return refused_frame(from, "it speaks in another's name");
  if (missed_.erase(*node) == 1)
    send(cluster::RequestRegistration{*node, "it read too slowly and missed what the head said"});
  const auto* program = std::get_if<cluster::JobRegistered>(&event);
  if (program == nullptr) return on(event);
  cluster::JobRegistered registered = *program;
  if (!runs_there(registered)) registered.submission.clear();
  registered.started_by = starter_of(registered);
  on(registered);
}

void Head::on(const cluster::ClusterEvent& event) {
  machine_.set_wall_clock(wall_clock_ms());
  carry_out(machine_.on(event, clock_.now()));
}

void Head::carry_out(HeadMachine::Output output) {
  for (const auto& line : output.log) log(line.level, line.text);
  for (const NodeId node : output.died) expire_key(node);
  for (HeadMessage& message : output.send) {
    if (auto* reply = std::get_if<HeadReply>(&message)) {
      server_->send(reply->to, std::move(reply->frame));  // who is gone asks again
    } else {
      send(std::get<cluster::ClusterAction>(message));
    }
  }
  if (output.write) store_->write(std::move(output.write));
}

/// A node without a session registers again when it is back. One that does not read its messages hears no
/// more of them until it has been asked to register: what the head says arrives in order or not at all.
void Head::send(const cluster::ClusterAction& action) {
  if (server_ == nullptr) return;  // while it restores: nodes that come back are told then
  const NodeId node = receiver_of(action);
  if (missed_.contains(node)) return;
  try {
    const Sent sent = server_->send(to_hex(node.value), wire::control_frame(wire::FromHead{action}));
    if (sent == Sent::kFull) missed_.insert(node);
  } catch (const Error& error) {  // a list of nodes that no message can hold
    log(LogLevel::kError, "cannot answer node " + to_string(node) + ": " + error.info().message());
  }
}

}  // namespace troupe
