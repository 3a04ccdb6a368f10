#include "scheduler/head/head_machine.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "runtime/wire/messages.hpp"

namespace troupe {
namespace {

constexpr Duration kSayAgain = std::chrono::seconds(30);
constexpr std::string_view kSubmissionKey = "submission/";

SubmissionShown shown_of(cluster::SubmissionRecord record) {
  cluster::SubmissionSpec spec = std::exchange(record.spec, {});
  return {std::move(spec.id), std::move(record)};
}

std::string named(const cluster::NodeInfo& node) {
  return (node.gateway ? "the node of program " : "node ") + node.name + " (" + to_string(node.id) + ")";
}

/// Who is dead from now on, and why: what was said of it, or its silence.
void log_deaths(const cluster::ClusterEvent& event, const std::vector<cluster::ClusterAction>& actions,
                HeadMachine::Output& out) {
  const auto* left = std::get_if<cluster::NodeLeft>(&event);
  for (const auto& action : actions) {
    const auto* persist = std::get_if<cluster::Persist>(&action);
    const auto* node = persist == nullptr ? nullptr : std::get_if<cluster::NodeRecord>(&persist->record);
    if (node == nullptr || !node->dead) continue;
    const std::string why = left == nullptr ? "it was silent for too long" : left->reason;
    out.log.push_back({LogLevel::kInfo, named(node->node) + " is gone: " + why});
  }
}

/// What waits for no store that works: a failing one may hold what it follows for long. A question for
/// arguments changes nothing. That a further life is up, a head that forgets it hears again of its node, or
/// it gives the next one a later incarnation.
bool promises_nothing(const cluster::ClusterAction& action) {
  if (const auto* wanted = std::get_if<cluster::ArgumentsWanted>(&action)) return !wanted->node;
  const auto* placed = std::get_if<cluster::ActorPlaced>(&action);
  return placed != nullptr && placed->place.life == cluster::ActorLife::kLives &&
         placed->place.incarnation > 1;
}

/// An actor died, and all that follows so far is that the arguments of its next life are asked for: their
/// coming places that life, which is written in the same go.
bool only_asks_for_arguments(const cluster::ClusterEvent& event,
                             const std::vector<cluster::ClusterAction>& actions) {
  if (!std::holds_alternative<cluster::ActorDown>(event)) return false;
  bool asks = false;
  for (const auto& action : actions) {
    const bool asks_owner =
        promises_nothing(action) && std::holds_alternative<cluster::ArgumentsWanted>(action);
    asks = asks || asks_owner;
    if (!asks_owner && !std::holds_alternative<cluster::Persist>(action) &&
        !std::holds_alternative<cluster::ActorPlaced>(action))
      return false;
  }
  return asks;
}

}  // namespace

ErrorInfo refused_for(std::string what, const ErrorInfo& trouble) {
  return {trouble.code, std::move(what), trouble.what + ": " + trouble.why,
          trouble.todo.empty() ? "try again" : trouble.todo};
}

HeadMachine::Output HeadMachine::restore(std::vector<cluster::Record> records, Instant now) {
  Output out;
  for (const cluster::Record& record : records) {
    if (const auto* submission = std::get_if<cluster::SubmissionRecord>(&record)) show(shown_of(*submission));
  }
  take(cluster_.on(cluster::Restored{std::move(records)}, now), out);
  log_detached(out);
  finish(now, out);
  return out;
}

HeadMachine::Output HeadMachine::on(const cluster::ClusterEvent& event, Instant now) {
  Output out;
  if (trouble_ && !is_taken_in_trouble(event, now, out)) return out;
  const auto* joins = std::get_if<cluster::NodeJoined>(&event);
  const bool is_new = joins != nullptr && !cluster_.is_registered(joins->node.id);
  std::vector<cluster::ClusterAction> actions = cluster_.on(event, now);
  if (is_new && cluster_.is_registered(joins->node.id))
    out.log.push_back({LogLevel::kInfo, named(joins->node) + " is in; it listens at " + joins->node.address});
  log_deaths(event, actions, out);
  log_detached(out);
  const bool is_settled_soon = only_asks_for_arguments(event, actions);
  // It promises nothing, and asked once a heartbeat it would pile up behind the store.
  if (trouble_ && actions.size() == 1 && std::holds_alternative<cluster::RequestRegistration>(actions[0]))
    out.send.push_back(std::move(actions[0]));
  else
    take(std::move(actions), out);
  const auto* beat = std::get_if<cluster::Heartbeat>(&event);
  if (beat != nullptr && cluster_.is_registered(beat->node))
    out.send.push_back(cluster::HeartbeatAnswered{beat->node});
  if (!is_settled_soon) finish(now, out);  // else the next event does, a tick at the latest
  return out;
}

void HeadMachine::log_detached(Output& out) const {
  for (const std::string& line : cluster_.log()) out.log.push_back({LogLevel::kInfo, line});
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
  if (queue_.failure()) fail_replies(now, out);
  finish(now, out);
  return out;
}

HeadMachine::Output HeadMachine::written(const Result<void>& how, Instant now) {
  Output out;
  queue_.written(how, now);
  if (!how) fail_replies(now, out);
  finish(now, out);
  return out;
}

HeadMachine::Output HeadMachine::tick(Instant now) {
  return on(cluster::Tick{}, now);
}

/// While the store fails: what has ended ends, so that nothing is held for ever that could go. What lives
/// goes on living: nodes in the store show themselves and register once. New work is refused with the reason,
/// and other questions are dropped, to be repeated when the store works again.
bool HeadMachine::is_taken_in_trouble(const cluster::ClusterEvent& event, Instant now, Output& out) {
  if (const auto* spawn = std::get_if<cluster::SpawnRequested>(&event)) {
    if (cluster_.has_request(spawn->requester)) return true;  // its answer is held
    refuse_spawn(*spawn, now, out);
    return false;
  }
  if (const auto* job = std::get_if<cluster::JobRegistered>(&event)) {
    const cluster::Job* known = cluster_.jobs().named(job->name);
    if (known != nullptr && known->record.driver == job->driver && known->record.request == job->request)
      return true;
    const ErrorInfo error = refused_for("cannot run job " + cluster::clipped(job->name), *trouble_);
    out.send.push_back(cluster::JobAnswered{job->driver, job->request, {}, 0, error.why, error});
    return false;
  }
  if (const auto* group = std::get_if<cluster::GroupRequested>(&event)) {
    if (group->verb == cluster::GroupVerb::kRemove) return true;
    dropped_ = true;
    return false;
  }
  if (const auto* submission = std::get_if<cluster::SubmissionRequested>(&event))
    return cluster_.submissions().find(submission->spec.id) != nullptr;  // its client is told by the shell
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
                           std::holds_alternative<cluster::LookupActor>(event) ||
                           std::holds_alternative<cluster::ResolveActor>(event);
  dropped_ = dropped_ || is_question;
  return !is_question;
}

/// And those that were to start with it. A refusal of what never had a place promises nothing: it waits for
/// no store.
void HeadMachine::refuse_spawn(const cluster::SpawnRequested& spawn, Instant now, Output& out) {
  const ErrorInfo error = refused_for("cannot spawn " + cluster::clipped(spawn.spec.type), *trouble_);
  out.send.push_back(cluster::SpawnAnswered{spawn.requester, false, {}, {}, error, error.why});
  std::vector<cluster::ClusterAction> later;
  for (auto& action : cluster_.spawn_refused(spawn, error, now)) {
    const auto* answered = std::get_if<cluster::SpawnAnswered>(&action);
    const bool is_refusal = answered != nullptr && !answered->ok && !answered->actor;
    if (is_refusal) {
      out.send.push_back(std::move(action));
    } else {
      later.push_back(std::move(action));
    }
  }
  take(std::move(later), out);
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
  std::vector<SubmissionShown> shown;
  for (const auto& action : actions) {
    const auto* persist = std::get_if<cluster::Persist>(&action);
    const auto* node = persist == nullptr ? nullptr : std::get_if<cluster::NodeRecord>(&persist->record);
    if (node != nullptr && node->dead) out.died.push_back(node->node.id);
    const auto* submission =
        persist == nullptr ? nullptr : std::get_if<cluster::SubmissionRecord>(&persist->record);
    if (submission != nullptr) shown.push_back(shown_of(*submission));
    const auto* erase = std::get_if<cluster::Erase>(&action);
    if (erase != nullptr && erase->key.starts_with(kSubmissionKey))
      shown.push_back({erase->key.substr(kSubmissionKey.size()), std::nullopt});
  }
  const auto at_once = std::stable_partition(actions.begin(), actions.end(), [&](const auto& action) {
    return trouble_ || !promises_nothing(action);
  });
  std::move(at_once, actions.end(), std::back_inserter(out.send));
  actions.erase(at_once, actions.end());
  queue_.add(std::move(actions));
  for (SubmissionShown& one : shown) queue_.add(std::move(one));
}

void HeadMachine::show(SubmissionShown shown) {
  if (!shown.record) {
    shown_.erase(shown.id);
  } else {
    shown_.insert_or_assign(std::move(shown.id), *std::move(shown.record));
  }
}

std::optional<cluster::SubmissionRecord> HeadMachine::shown(const std::string& id) const {
  const cluster::SubmissionRecord* known = cluster_.submissions().find(id);
  const auto at = shown_.find(id);
  if (known == nullptr || at == shown_.end()) return std::nullopt;
  cluster::SubmissionRecord record = at->second;
  record.spec = known->spec;
  return record;
}

/// Who asked hears at once that nothing came of it, and a submission that nobody was told of is forgotten.
void HeadMachine::fail_replies(Instant now, Output& out) {
  for (const HeadReply& reply : queue_.take_failed_replies()) {
    const bool is_new = !reply.submission.empty();
    if (is_new) {
      queue_.unsay_start(reply.submission);
      take(cluster_.withdraw_submission(reply.submission, now), out);
    }
    wire::Answer answer{.request = reply.request, .ok = false};
    answer.error =
        refused_for(is_new ? "cannot submit the job" : "it is not recorded yet", *queue_.failure());
    out.send.push_back(HeadReply{reply.to, wire::control_frame(std::move(answer))});
  }
}

void HeadMachine::finish(Instant now, Output& out) {
  const auto take_ready = [&] {
    for (HeadMessage& message : queue_.take_ready()) {
      if (auto* shown = std::get_if<SubmissionShown>(&message)) {
        show(std::move(*shown));
      } else {
        out.send.push_back(std::move(message));
      }
    }
  };
  take_ready();
  for (cluster::ClusterAction& end : queue_.take_early_ends()) out.send.push_back(std::move(end));
  look_at_store(now, out);
  out.write = queue_.next_write(now);
  take_ready();
}

}  // namespace troupe
