// Submitted jobs: which starts when and where, what becomes of it, and what a restarted head makes of what
// nodes say.
#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {
namespace {

constexpr const char* kNotThere = "the head does not know it as running there";

bool holds_a_node(const SubmissionRecord& submission) {
  return submission.state == SubmissionState::kStarting || submission.state == SubmissionState::kRunning ||
         submission.state == SubmissionState::kStopping;
}

std::string attempt_of(const SubmissionRecord& submission) {
  if (submission.spec.retries == 0) return "";
  return "attempt " + std::to_string(submission.attempt) + " of " +
         std::to_string(submission.spec.retries + 1) + ": ";
}

/// Of memory and custom resources, each in 1/10000 of what is asked for.
std::int64_t lacks_of_others(const NodeView& node, const ActorDemand& demand) {
  std::int64_t lacks = 0;
  for (const ResourceAmount& one : demand.other.amounts) {
    const std::int64_t free = amount_of(node.other.amounts, one.name) - amount_of(node.other_used, one.name);
    if (free >= one.amount) continue;
    lacks += static_cast<std::int64_t>(10'000.0 * static_cast<double>(one.amount - free) /
                                       static_cast<double>(one.amount)) +
             1;
  }
  return lacks;
}

std::string words(const SubmissionSpec& spec) {
  std::string text;
  for (const std::string& word : spec.program) text += (text.empty() ? "" : " ") + word;
  return clipped(text.substr(0, 200));
}

}  // namespace

std::optional<ErrorInfo> ClusterMachine::submission_refused(const SubmissionSpec& spec) const {
  if (auto wrong = check_submission(spec)) return wrong;
  const std::string what = "cannot submit the job";
  if (const SubmissionRecord* known = submissions_.find(spec.id)) {
    if (known->spec == spec) return std::nullopt;
    const bool other_files = known->spec.package != spec.package;
    const bool other_options = !other_files && known->spec.program == spec.program;
    return ErrorInfo{ErrorCode::kRefused, what,
                     "the id " + spec.id + " is that of another job: '" + words(known->spec) +
                         "', and this is '" + words(spec) + "'" + (other_files ? " with other files" : "") +
                         (other_options ? " with other options" : ""),
                     "leave the id out, or choose another"};
  }
  if (const SubmissionRecord* named = spec.name.empty() ? nullptr : submissions_.named(spec.name)) {
    return ErrorInfo{ErrorCode::kRefused, what,
                     std::string("job ").append(named->spec.id).append(kHasTheName).append(spec.name) +
                         " and is " + state_name(named->state),
                     "choose another name, or stop that job: troupe job stop " + named->spec.id};
  }
  if (queues_.find(cluster::queue_of(spec)) == nullptr) {
    std::string names;
    for (const auto& [name, queue] : queues_.all()) names += (names.empty() ? "" : ", ") + name;
    return ErrorInfo{ErrorCode::kRefused, what,
                     "there is no queue " + spec.queue + ", there is " + clipped(names),
                     "name another one, or make it: troupe queue set " + spec.queue};
  }
  if (submissions_.unfinished() >= config_.max_submissions) {
    return ErrorInfo{ErrorCode::kLimit, what,
                     std::to_string(submissions_.unfinished()) + " jobs wait or run, which are the most",
                     "submit it again when some have ended"};
  }
  return std::nullopt;
}

void ClusterMachine::handle(const SubmissionRequested& e) {
  if (submission_refused(e.spec) || submissions_.find(e.spec.id) != nullptr) return;
  SubmissionRecord record;
  record.spec = e.spec;
  record.number = submissions_.next_number();
  record.submitted_ms = wall_ms_;
  record.message = "waits for a node";
  const SubmissionRecord& added = submissions_.add(std::move(record));
  submissions_.enqueue(added);
  persist(added);
  look_at_queue_ = true;
}

/// In the queues' turns, and each queue's order. The first that must wait for a node is not overtaken where
/// it will start: one node is kept for it, and others start elsewhere. What no node could ever hold, or its
/// queue may not hold now, holds up nobody.
void ClusterMachine::start_submissions() {
  if (!std::exchange(look_at_queue_, false)) return;
  kept_ = {};
  first_.clear();
  const SubmissionRecord* first = nullptr;
  std::set<SubmissionTable::Size> fits_nowhere;
  QueueSizes over;
  const scheduler::Room all = submissions_.waiting_queues().size() > 1 ? all_room() : scheduler::Room{};
  while (SubmissionRecord* submission = next_submission(first, fits_nowhere, over, all)) {
    const SubmissionSpec& spec = submission->spec;
    const std::string& queue = cluster::queue_of(spec);
    const SubmissionTable::Size size{spec.cpu_e4, spec.gpu_e4, spec.other};
    if (!over_quota(queue, scheduler::Room::of(spec)).empty()) {
      over[queue].insert(size);
      continue;
    }
    const Placement placement = place_behind(first, demand_of(spec));
    if (placement.verdict == PlacementVerdict::kPlaced) {
      if (first == nullptr && turn_ == queue) turn_.clear();
      start_driver(*submission, placement);
      continue;
    }
    if (placement.verdict == PlacementVerdict::kWait && first == nullptr) {
      first = submission;
      first_ = spec.id;
      turn_ = queue;
    }
    fits_nowhere.insert(size);
  }
  look_at_queue_ = false;  // what was started here makes no room
}

/// The node that lacks least for it of those that could hold it. Nothing else that asks for the same is
/// started there, so it lacks less with everything that ends: who waits first starts in the end, however many
/// come after it. None: no node that is heard of could hold it. O(nodes).
NodeId ClusterMachine::kept_for(const ActorDemand& demand) const {
  NodeId nearest;
  std::tuple<std::int64_t, std::int64_t, std::int64_t> least;
  for (const auto& [id, node] : index_.nodes()) {
    const auto gpu_e4 = static_cast<std::int64_t>(node.gpus.size()) * kGpu;
    if (node.suspect || node.cpu_e4 < demand.cpu_e4 || gpu_e4 < demand.gpu_e4 ||
        !has_amounts(node.other.amounts, {}, demand.other.amounts) ||
        !has_labels(node.other.labels, demand.other.labels))
      continue;
    const std::tuple lacks{std::max<std::int64_t>(0, demand.gpu_e4 - free_gpu(node.gpus)),
                           lacks_of_others(node, demand),
                           std::max<std::int64_t>(0, demand.cpu_e4 - (node.cpu_e4 - node.cpu_used_e4))};
    if (nearest && least <= lacks) continue;
    nearest = id;
    least = lacks;
  }
  return nearest;
}

/// `first` waits already; null: nobody does.
Placement ClusterMachine::place_behind(const SubmissionRecord* first, const ActorDemand& demand) {
  Placement placement = index_.place(demand);
  if (first == nullptr || placement.verdict != PlacementVerdict::kPlaced) return placement;
  const ActorDemand ahead = demand_of(first->spec);
  if (!competes(ahead, demand)) return placement;
  const NodeId kept = kept_for(ahead);
  if (placement.node != kept) return placement;
  kept_ = kept;
  const NodeView view = index_.nodes().at(kept);
  index_.remove(kept);
  placement = index_.place(demand);
  index_.set(view);
  if (placement.verdict != PlacementVerdict::kPlaced) return {};
  return placement;
}

void ClusterMachine::start_driver(SubmissionRecord& submission, const Placement& placement) {
  submissions_.dequeue(submission);
  submission.state = SubmissionState::kStarting;
  ++submission.attempt;
  submission.node = placement.node;
  submission.node_name = nodes_.at(placement.node).info.name;
  submission.gpus = placement.gpus;
  submission.message = attempt_of(submission) + placement.reason;
  files_at_[submission.spec.id].insert(placement.node);
  hold(submission);
  persist(submission);
  out_.push_back(start_of(submission));
}

StartDriver ClusterMachine::start_of(const SubmissionRecord& submission) const {
  StartDriver start{submission.node, submission.spec, submission.attempt, submission.message};
  const std::vector<std::string>& names = nodes_.at(submission.node).info.gpus;
  for (const std::uint32_t gpu : submission.gpus) {
    if (gpu < names.size()) start.gpus.push_back(names[gpu]);
  }
  return start;
}

void ClusterMachine::stop_driver(const SubmissionRecord& submission) {
  out_.push_back(StopDriver{submission.node, submission.spec.id, submission.attempt, config_.stop_grace_s,
                            submission.message});
}

void ClusterMachine::handle(const SubmissionStopRequested& e) {
  for (const JobId parked : parked_jobs_of(e.id)) end_job(*jobs_.find(parked), "it was stopped", true);
  SubmissionRecord* submission = submissions_.find(e.id);
  if (submission == nullptr || has_ended(submission->state)) return;
  if (submission->state == SubmissionState::kQueued)
    return end_submission(*submission, SubmissionState::kStopped, "it was stopped while it waited");
  if (submission->state != SubmissionState::kStopping) {
    submission->state = SubmissionState::kStopping;
    submission->message = "it was told to stop";
    persist(*submission);
  }
  stop_driver(*submission);
}

void ClusterMachine::handle(const DriverStarted& e) {
  if (!is_registered(e.node)) return;
  SubmissionRecord* submission = submissions_.find(e.id);
  const bool there = submission != nullptr && holds_a_node(*submission) && submission->node == e.node &&
                     submission->attempt == e.attempt;
  if (!there) return out_.push_back(StopDriver{e.node, e.id, e.attempt, 0, kNotThere});
  driver_runs(*submission);
}

void ClusterMachine::driver_runs(SubmissionRecord& submission) {
  if (submission.state != SubmissionState::kStarting) return;
  submission.state = SubmissionState::kRunning;
  if (submission.started_ms == 0) submission.started_ms = wall_ms_;
  submission.message = attempt_of(submission) + "it runs on " + submission.node_name;
  persist(submission);
}

void ClusterMachine::handle(const DriverEnded& e) {
  if (!is_registered(e.node)) return;
  SubmissionRecord* submission = submissions_.find(e.id);
  const bool there = submission != nullptr && holds_a_node(*submission) && submission->node == e.node &&
                     submission->attempt == e.attempt;
  if (there) driver_gone(*submission, e.end);
  out_.push_back(DriverSettled{e.node, e.id, e.attempt});
}

/// It ended, or nobody can say any more what it does.
void ClusterMachine::driver_gone(SubmissionRecord& submission, const DriverEnd& end) {
  release(submission);
  const std::string how = attempt_of(submission) + clipped(end.how);
  if (end.signal > 0) {
    submission.exit_code = 128 + end.signal;
  } else if (end.exit_code >= 0) {
    submission.exit_code = end.exit_code;
  }
  if (submission.state == SubmissionState::kStopping)
    return end_submission(submission, SubmissionState::kStopped, "it was told to stop: " + how);
  if (end.again) {
    --submission.attempt;  // it never ran
    return queue_again(submission, how, Duration(0));
  }
  if (end.ran && end.exit_code == 0 && end.signal == 0)
    return end_submission(submission, SubmissionState::kSucceeded, how);
  if (submission.attempt > submission.spec.retries)
    return end_submission(submission, SubmissionState::kFailed, how);
  Duration after = config_.retry_after;
  for (int i = 1; i < submission.attempt && after < config_.retry_after_most; ++i) after *= 2;
  queue_again(submission, how + "; it is tried again", std::min(after, config_.retry_after_most));
}

void ClusterMachine::end_submission(SubmissionRecord& submission, SubmissionState state,
                                    std::string message) {
  submission.state = state;
  submission.gpus.clear();
  submission.ended_ms = wall_ms_;
  submission.message = std::move(message);
  persist(submission);
  submissions_.ended(submission, now_ + config_.keep_ended_submissions);
  look_at_queue_ = true;  // it may have held up others without holding a node
}

void ClusterMachine::queue_again(SubmissionRecord& submission, std::string message, Duration after) {
  submission.state = SubmissionState::kQueued;
  submission.gpus.clear();
  submission.message = std::move(message);
  persist(submission);
  if (after > Duration(0)) return submissions_.delay(submission, now_ + after);
  submissions_.enqueue(submission);
  look_at_queue_ = true;
}

/// A node says what it runs. What was told to it and never arrived is told again; what the head does not want
/// is ended.
void ClusterMachine::reconcile_drivers(NodeId node, const std::vector<HeldDriver>& listed) {
  std::set<std::string> there;
  for (const HeldDriver& held : listed) {
    SubmissionRecord* submission = submissions_.find(held.id);
    const bool expected = submission != nullptr && holds_a_node(*submission) && submission->node == node &&
                          submission->attempt == held.attempt;
    if (submission != nullptr) files_at_[held.id].insert(node);
    if (held.state == HeldDriver::State::kEnded) {
      if (expected) driver_gone(*submission, held.end);
      out_.push_back(DriverSettled{node, held.id, held.attempt});
    } else if (held.state != HeldDriver::State::kFiles) {
      if (!expected) {
        out_.push_back(StopDriver{node, held.id, held.attempt, 0, kNotThere});
      } else {
        there.insert(held.id);
        if (submission->state == SubmissionState::kStopping) stop_driver(*submission);
        if (held.state == HeldDriver::State::kRuns) driver_runs(*submission);
      }
    }
    if (submission == nullptr) out_.push_back(ForgetSubmission{node, held.id});
  }
  const std::set<std::string> known = nodes_.at(node).drivers;
  for (const std::string& id : known) {
    SubmissionRecord& submission = *submissions_.find(id);
    if (there.contains(id)) continue;
    if (submission.state == SubmissionState::kStarting) {
      out_.push_back(start_of(submission));
    } else {
      driver_gone(submission, {.ran = submission.state == SubmissionState::kRunning,
                               .how = "it was gone when its node registered again"});
    }
  }
}

void ClusterMachine::drivers_lost(NodeId node, const std::string& why) {
  const std::set<std::string> lost = nodes_.at(node).drivers;
  for (const std::string& id : lost) driver_gone(*submissions_.find(id), {.ran = true, .how = why});
}

/// REQUIRES: the nodes are restored.
void ClusterMachine::restore_submission(const SubmissionRecord& record) {
  const bool gpus_fit = !holds_a_node(record) || holds_what_it_asked(record);
  if (check_submission(record.spec) || !gpus_fit) {  // of another build, which took what this one refuses
    out_.push_back(Erase{"submission/" + record.spec.id});
    return;
  }
  SubmissionRecord& submission = submissions_.add(record);
  if (submission.node) files_at_[record.spec.id].insert(submission.node);
  if (has_ended(submission.state)) {
    submissions_.ended(submission, now_ + config_.keep_ended_submissions);
  } else if (submission.state == SubmissionState::kQueued) {
    submissions_.enqueue(submission);
    look_at_queue_ = true;
  } else if (nodes_.contains(submission.node)) {
    hold(submission);
  } else {  // its node's death was recorded, its own not
    const bool stopping = submission.state == SubmissionState::kStopping;
    const std::string why = "its node " + submission.node_name + " is dead";
    if (stopping || submission.attempt > submission.spec.retries) {
      end_submission(submission, stopping ? SubmissionState::kStopped : SubmissionState::kFailed, why);
    } else {
      queue_again(submission, why + "; it is tried again", config_.retry_after);
    }
  }
}

void ClusterMachine::withdraw(const SubmissionRecord& submission) {
  if (holds_a_node(submission)) release(submission);
  out_.push_back(Erase{"submission/" + submission.spec.id});
  files_at_.erase(submission.spec.id);
  submissions_.remove(submission);
  look_at_queue_ = true;
}

void ClusterMachine::trim_submissions() {
  const auto is_kept = [this](const std::string& id) { return is_needed(id); };
  while (const auto forgotten = submissions_.trim(now_, config_.max_ended_submissions,
                                                  config_.keep_ended_submissions, is_kept)) {
    const std::string& id = forgotten->spec.id;
    out_.push_back(Erase{"submission/" + id});
    const auto files = files_at_.find(id);
    if (files == files_at_.end()) continue;
    for (const NodeId node : files->second) {
      if (is_registered(node)) out_.push_back(ForgetSubmission{node, id});
    }
    files_at_.erase(files);
  }
}

void ClusterMachine::hold(const SubmissionRecord& submission) {
  Node& node = nodes_.at(submission.node);
  hold_room(node, {submission.spec.cpu_e4, submission.spec.gpu_e4, submission.spec.other}, submission.gpus);
  charge_program(submission.spec, 1);
  node.drivers.insert(submission.spec.id);
  refresh(submission.node);
}

void ClusterMachine::release(const SubmissionRecord& submission) {
  Node& node = nodes_.at(submission.node);
  free_room(node, {submission.spec.cpu_e4, submission.spec.gpu_e4, submission.spec.other}, submission.gpus);
  charge_program(submission.spec, -1);
  const bool was_there = node.drivers.erase(submission.spec.id) == 1;
  TROUPE_ASSERT(was_there && node.cpu_used_e4 >= 0, "a driver is released once");
  if (membership_.liveness(submission.node) == Liveness::kDead) return;
  refresh(submission.node);
  freed_.push_back(submission.node);
}

std::vector<NodeId> ClusterMachine::outputs_of(const SubmissionRecord& submission) const {
  std::vector<NodeId> nodes;
  if (is_registered(submission.node)) nodes.push_back(submission.node);
  const auto files = files_at_.find(submission.spec.id);
  if (files == files_at_.end()) return nodes;
  for (const NodeId node : files->second) {
    if (node != submission.node && is_registered(node)) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace troupe::cluster
