#include "runtime/node/head_line.hpp"

#include <algorithm>

namespace troupe::node {
namespace {

constexpr const char* kAway = "the head does not answer: it is stopped, too busy, or gone";

/// What NodeJoined does not say by itself.
bool outlives_connection(const cluster::ClusterEvent& event) {
  return std::holds_alternative<cluster::SpawnCancelled>(event) ||
         std::holds_alternative<cluster::KillRequested>(event) ||
         std::holds_alternative<cluster::ActorFailed>(event) ||
         std::holds_alternative<cluster::ActorDown>(event);
}

}  // namespace

void HeadLine::tell(cluster::ClusterEvent event, Actions& out) {
  if (up_) {
    out.push_back(TellHead{std::move(event)});
  } else if (outlives_connection(event)) {
    kept_.push_back(std::move(event));
    if (kept_.size() > limits_.kept_events) kept_.pop_front();
  }
}

Result<void> HeadLine::ask(ProcessId process, std::uint64_t request, cluster::ClusterEvent event,
                           std::size_t bytes, Actions& out) {
  Load& load = loads_[process];
  if (load.requests >= limits_.requests || load.bytes + bytes > limits_.request_bytes) {
    return ErrorInfo{
        ErrorCode::kLimit, "the request was not passed on",
        std::to_string(load.requests) + " requests of this process with " + std::to_string(load.bytes) +
            " bytes wait for an answer, or are kept to start an actor again (limits " +
            std::to_string(limits_.requests) + " and " + std::to_string(limits_.request_bytes) + ")",
        "wait for some of them"};
  }
  if (!open_.emplace(std::pair(process, request), Open{event, bytes}).second) return {};  // asked twice
  ++load.requests;
  load.bytes += bytes;
  if (up_) out.push_back(TellHead{std::move(event)});
  return {};
}

bool HeadLine::answered(ProcessId process, std::uint64_t request) {
  const auto at = open_.find({process, request});
  if (at == open_.end()) return false;
  unload(process, at->second.bytes);
  open_.erase(at);
  return true;
}

void HeadLine::unload(ProcessId process, std::size_t bytes) {
  const auto at = loads_.find(process);
  if (at == loads_.end()) {
    --orphans_;
    return;
  }
  --at->second.requests;
  at->second.bytes -= bytes;
  if (at->second.requests == 0) loads_.erase(at);
}

bool HeadLine::has_kills() const {
  return std::any_of(open_.begin(), open_.end(), [](const auto& one) {
    return std::holds_alternative<cluster::KillRequested>(one.second.event);
  });
}

bool HeadLine::answered_and_kept(ProcessId process, std::uint64_t request, ActorId actor) {
  const auto at = open_.find({process, request});
  auto* spawn = at == open_.end() ? nullptr : std::get_if<cluster::SpawnRequested>(&at->second.event);
  if (spawn == nullptr) return answered(process, request);
  arguments_[at->first] = {actor, std::move(spawn->spec.payload)};
  open_.erase(at);
  return true;
}

const std::string* HeadLine::arguments(ProcessId process, std::uint64_t request) const {
  if (const auto kept = arguments_.find({process, request}); kept != arguments_.end())
    return &kept->second.payload;
  const auto at = open_.find({process, request});
  const auto* spawn = at == open_.end() ? nullptr : std::get_if<cluster::SpawnRequested>(&at->second.event);
  return spawn == nullptr ? nullptr : &spawn->spec.payload;
}

void HeadLine::let_go(ActorId actor) {
  const auto at = std::find_if(arguments_.begin(), arguments_.end(),
                               [&](const auto& kept) { return kept.second.actor == actor; });
  if (at == arguments_.end()) return;
  unload(at->first.first, at->second.payload.size());
  arguments_.erase(at);
}

void HeadLine::waits(ProcessId process, std::uint64_t request, const std::string& why) {
  if (const auto at = open_.find({process, request}); at != open_.end()) at->second.waits_for = why;
}

void HeadLine::cancel(ProcessId process, std::uint64_t request) {
  if (answered(process, request)) remember_unwanted({process, request});
}

void HeadLine::remember_unwanted(const Key& key) {
  if (!unwanted_.insert(key).second) return;
  unwanted_order_.push_back(key);
  if (unwanted_order_.size() <= limits_.kept_events) return;
  unwanted_.erase(unwanted_order_.front());
  unwanted_order_.pop_front();
}

void HeadLine::forget(ProcessId process, bool job_ends, Actions& out) {
  for (auto at = open_.lower_bound({process, 0}); at != open_.end() && at->first.first == process;) {
    const auto* spawn = std::get_if<cluster::SpawnRequested>(&at->second.event);
    const auto* group = std::get_if<cluster::GroupRequested>(&at->second.event);
    const bool kills = std::holds_alternative<cluster::KillRequested>(at->second.event);
    if (kills && orphans_ < limits_.kept_events) {
      ++orphans_;
      ++at;
      continue;
    }
    if (kills && !std::exchange(told_full_, true))
      out.push_back(Log{LogLevel::kWarning, "kills that processes said before they ended are dropped: " +
                                                std::to_string(orphans_) +
                                                " wait already for a head that answers"});
    if (spawn != nullptr || (group != nullptr && group->verb == cluster::GroupVerb::kMake)) {
      remember_unwanted(at->first);
      const auto& requester = spawn != nullptr ? spawn->requester : group->requester;
      if (up_ && !job_ends) out.push_back(TellHead{cluster::SpawnCancelled{requester}});
    }
    at = open_.erase(at);
  }
  std::erase_if(arguments_, [&](const auto& kept) { return kept.first.first == process; });
  loads_.erase(process);
}

void HeadLine::say_away(Actions& out) {
  for (auto& [key, open] : open_) {
    if (!std::exchange(open.told_away, true))
      out.push_back(SendLocal{key.first, wire::SpawnWaits{key.second, kAway}, {}});
  }
}

void HeadLine::say_back(Actions& out) {
  for (auto& [key, open] : open_) {
    if (std::exchange(open.told_away, false))
      out.push_back(SendLocal{key.first, wire::SpawnWaits{key.second, open.waits_for}, {}});
  }
}

void HeadLine::end_job(cluster::JobEnded ended, Actions& out) {
  if (up_) out.push_back(TellHead{ended});
  const std::pair key(ended.job, ended.driver);
  ending_.insert_or_assign(key, std::move(ended));
}

void HeadLine::joined(cluster::NodeJoined joined, Actions& out) {
  up_ = true;
  told_full_ = false;
  const NodeId self = joined.node.id;
  // The process that asked may have been the last of its job here: by what joins, this node may kill nothing.
  const auto say_kill = [&](const cluster::ClusterEvent& event) {
    if (std::holds_alternative<cluster::KillRequested>(event)) out.push_back(TellHead{event});
  };
  for (const auto& [key, open] : open_) say_kill(open.event);
  for (const auto& event : kept_) say_kill(event);
  out.push_back(TellHead{std::move(joined)});
  for (const auto& [key, open] : open_) out.push_back(TellHead{open.event});
  // The head may not have heard that nobody waits for these: the word was lost with the connection.
  for (const auto& [process, request] : unwanted_order_)
    out.push_back(TellHead{cluster::SpawnCancelled{{{self, process}, request}}});
  for (auto& event : std::exchange(kept_, {})) out.push_back(TellHead{std::move(event)});
  for (const auto& [key, ended] : ending_) out.push_back(TellHead{ended});
}

}  // namespace troupe::node
