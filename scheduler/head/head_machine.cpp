#include "scheduler/head/head_machine.hpp"

#include <utility>

namespace troupe {
namespace {

constexpr Duration kSayAgain = std::chrono::seconds(30);

ErrorInfo refused(const std::string& what, const ErrorInfo& trouble) {
  return {trouble.code, what, trouble.message(), trouble.todo.empty() ? "try again" : trouble.todo};
}

}  // namespace

HeadMachine::Output HeadMachine::restore(std::vector<cluster::Record> records, Instant now) {
  Output out;
  take(cluster_.on(cluster::Restored{std::move(records)}, now), out);
  finish(now, out);
  return out;
}

HeadMachine::Output HeadMachine::on(const cluster::ClusterEvent& event, Instant now) {
  Output out;
  if (trouble_ && !is_taken_in_trouble(event, out)) return out;
  std::vector<cluster::ClusterAction> actions = cluster_.on(event, now);
  // It promises nothing, and asked once a heartbeat it would pile up behind the store.
  if (trouble_ && actions.size() == 1 && std::holds_alternative<cluster::RequestRegistration>(actions[0]))
    out.send.push_back(std::move(actions[0]));
  else
    take(std::move(actions), out);
  const auto* beat = std::get_if<cluster::Heartbeat>(&event);
  if (beat != nullptr && cluster_.is_registered(beat->node))
    out.send.push_back(cluster::HeartbeatAnswered{beat->node});
  finish(now, out);
  return out;
}

HeadMachine::Output HeadMachine::store(const StoreBatch& changes, Instant now) {
  Output out;
  queue_.add(changes);
  finish(now, out);
  return out;
}

HeadMachine::Output HeadMachine::reply(HeadReply reply, Instant now) {
  Output out;
  queue_.add(std::move(reply));
  finish(now, out);
  return out;
}

HeadMachine::Output HeadMachine::written(const Result<void>& how, Instant now) {
  Output out;
  queue_.written(how, now);
  finish(now, out);
  return out;
}

HeadMachine::Output HeadMachine::tick(Instant now) {
  return on(cluster::Tick{}, now);
}

/// While the store fails: what has ended ends, so that nothing is held for ever that could go. What lives
/// goes on living: nodes in the store show themselves and register once. New work is refused with the reason,
/// and other questions are dropped, to be repeated when the store works again.
bool HeadMachine::is_taken_in_trouble(const cluster::ClusterEvent& event, Output& out) {
  if (const auto* spawn = std::get_if<cluster::SpawnRequested>(&event)) {
    if (cluster_.has_request(spawn->requester)) return true;  // its answer is held
    const ErrorInfo error = refused("cannot spawn " + cluster::clipped(spawn->spec.type), *trouble_);
    out.send.push_back(cluster::SpawnAnswered{spawn->requester, false, {}, {}, error, error.why});
    return false;
  }
  if (const auto* job = std::get_if<cluster::JobRegistered>(&event)) {
    const cluster::Job* known = cluster_.jobs().named(job->name);
    if (known != nullptr && known->record.driver == job->driver && known->record.request == job->request)
      return true;
    const ErrorInfo error = refused("cannot run job " + cluster::clipped(job->name), *trouble_);
    out.send.push_back(cluster::JobAnswered{job->driver, job->request, {}, 0, error.why, error});
    return false;
  }
  if (const auto* beat = std::get_if<cluster::Heartbeat>(&event))
    return cluster_.nodes().contains(beat->node);
  if (const auto* joined = std::get_if<cluster::NodeJoined>(&event)) {
    const NodeId id = joined->node.id;
    if (cluster_.nodes().contains(id) && !cluster_.is_registered(id)) return true;
    dropped_ = true;
    return false;
  }
  const bool is_question = std::holds_alternative<cluster::LeaseRequested>(event) ||
                           std::holds_alternative<cluster::PeerWanted>(event) ||
                           std::holds_alternative<cluster::NodesWanted>(event) ||
                           std::holds_alternative<cluster::LookupActor>(event);
  dropped_ = dropped_ || is_question;
  return !is_question;
}

void HeadMachine::look_at_store(Instant now, Output& out) {
  std::optional<ErrorInfo> found = queue_.failure();
  if (!found && (queue_.held() > max_held_ || (trouble_ && queue_.held() > max_held_ / 2))) {
    found = ErrorInfo{ErrorCode::kUnavailable, "the head's store is too slow",
                      std::to_string(queue_.held()) + " messages wait for it", "try again in a while"};
  }
  const bool was_in_trouble = trouble_.has_value();
  trouble_ = std::move(found);
  if (trouble_ && (!was_in_trouble || now - said_ >= kSayAgain)) {
    said_ = now;
    out.log.push_back({LogLevel::kError, trouble_->message() +
                                             ". New jobs and spawns are refused until the store works again; "
                                             "what runs goes on"});
  }
  if (trouble_ || !was_in_trouble) return;
  out.log.push_back({LogLevel::kWarning, "the head's store works again"});
  if (std::exchange(dropped_, false))
    queue_.add(cluster_.ask_all_to_register("the head's store works again: repeat what has no answer"));
}

void HeadMachine::take(std::vector<cluster::ClusterAction> actions, Output& out) {
  for (const auto& action : actions) {
    const auto* persist = std::get_if<cluster::Persist>(&action);
    const auto* node = persist == nullptr ? nullptr : std::get_if<cluster::NodeRecord>(&persist->record);
    if (node != nullptr && node->dead) out.died.push_back(node->node.id);
  }
  queue_.add(std::move(actions));
}

void HeadMachine::finish(Instant now, Output& out) {
  const auto take_ready = [&] {
    for (HeadMessage& message : queue_.take_ready()) out.send.push_back(std::move(message));
  };
  take_ready();
  look_at_store(now, out);
  out.write = queue_.next_write(now);
  take_ready();
}

}  // namespace troupe
