#include "runtime/node/hosted_actors.hpp"

#include <algorithm>

#include "runtime/wire/package_name.hpp"

namespace troupe::node {
namespace {

wire::ByteView bytes_of(const std::string& payload) {
  return {reinterpret_cast<const std::byte*>(payload.data()), payload.size()};
}

}  // namespace

void HostedActors::fail(ActorLifeId actor, ErrorInfo error, Actions& out, bool not_begun) {
  end(actor, cluster::ActorFailed{self_.info.id, actor.actor, std::move(error), actor.incarnation, not_begun},
      out);
}

void HostedActors::down(ActorLifeId actor, const std::string& reason, Actions& out, bool on_purpose) {
  end(actor, cluster::ActorDown{self_.info.id, actor.actor, reason, actor.incarnation, on_purpose}, out);
}

void HostedActors::end(ActorLifeId actor, End how, Actions& out) {
  ended_.add(actor, how);
  std::visit([&](auto& told) { head_.tell(std::move(told), out); }, how);
  goes_on(actor, out);  // another one may take its place
}

void HostedActors::task_waits(const LocalProcess& process, bool waits, Actions& out) {
  const auto at = std::find_if(actors_.begin(), actors_.end(), [&](const auto& one) {
    return one.second.process == process.id && one.second.isolated;
  });
  if (at == actors_.end()) return;
  const ActorLifeId actor = at->first;
  const bool keeps_cpus = std::find(keep_cpus_.begin(), keep_cpus_.end(), actor) != keep_cpus_.end();
  const bool gave_cpus = waiting_tasks_.contains(actor);
  if (waits == (keeps_cpus || gave_cpus)) return;
  if (!waits) {
    if (gave_cpus) head_.tell(cluster::ActorWaits{self_.info.id, actor.actor, actor.incarnation, false}, out);
    return goes_on(actor, out);
  }
  const std::size_t others = waiting_tasks_.size();
  if (others >= self_.limits.waiting_tasks) {
    keep_cpus_.push_back(actor);
    return out.push_back(SendLocal{process.id, wire::TaskWaits{true, others}, {}});
  }
  waiting_tasks_.insert(actor);
  head_.tell(cluster::ActorWaits{self_.info.id, actor.actor, actor.incarnation, true}, out);
}

/// It waits no longer: of those that keep their CPUs the first gives them away.
void HostedActors::goes_on(ActorLifeId actor, Actions& out) {
  std::erase(keep_cpus_, actor);
  if (waiting_tasks_.erase(actor) == 0 || keep_cpus_.empty()) return;
  const ActorLifeId next = keep_cpus_.front();
  keep_cpus_.erase(keep_cpus_.begin());
  waiting_tasks_.insert(next);
  head_.tell(cluster::ActorWaits{self_.info.id, next.actor, next.incarnation, true}, out);
}

bool HostedActors::told_again(ActorLifeId actor, Actions& out) {
  const End* how = ended_.find(actor);
  if (how != nullptr) std::visit([&](const auto& told) { head_.tell(told, out); }, *how);
  return how != nullptr;
}

void HostedActors::not_here(ActorLifeId actor, Actions& out) {
  // The head gives it a name.
  if (!told_again(actor, out)) fail(actor, {ErrorCode::kActorDied, "", "no such actor here", ""}, out, true);
}

void HostedActors::start(const cluster::StartActor& told, Instant now, Actions& out) {
  const ActorLifeId actor{told.actor, told.incarnation};
  const cluster::ActorSpec& spec = told.spec;
  if (actors_.contains(actor)) return;
  if (told_again(actor, out)) return;
  auto payload = wire::decode<wire::ActorPayload>(bytes_of(spec.payload));
  if (!payload) return fail(actor, payload.error(), out);
  const NodeId from = told.package_from ? told.package_from : payload->driver.node;
  const auto need = packages_.need(payload->package, from, now, out);
  if (need == PackageFetches::Need::kBusy) {
    return fail(actor,
                {ErrorCode::kLimit, "cannot get the job's executable", "this node is getting many others",
                 "spawn it again"},
                out, true);
  }
  if (need == PackageFetches::Need::kComing) {
    waiting_[payload->package].emplace(actor, told);
    return;
  }
  const bool isolated = spec.demand.isolated;
  LocalProcess* process = isolated ? nullptr : locals_.shared(spec.job);
  if (process == nullptr) {
    const NewWorker worker{isolated ? payload->label : "worker",
                           spec.job,
                           isolated,
                           told.package_from || spec.detached ? told.driver : payload->driver,
                           payload->package,
                           isolated ? told.gpus : std::vector<std::string>(),
                           isolated ? memory_of(spec.demand.other) : 0,
                           isolated && spec.detached};
    process = &locals_.start(worker, now, out);
  }
  out.push_back(ActorBegins{actor.actor, actor.incarnation, process->id, spec.name});
  wire::StartActorHere here{actor.actor,
                            isolated,
                            payload->constructor,
                            std::move(payload->args),
                            payload->max_concurrency,
                            actor.incarnation,
                            payload->owner,
                            spec.is_kept(),
                            told.state.version != 0 ? std::optional(told.state.bytes) : std::nullopt};
  Hosted hosted{process->id, spec.job, false, isolated, {}};
  if (process->state == LocalProcess::State::kUp) {
    out.push_back(SendLocal{process->id, std::move(here), {}});
  } else {
    hosted.start = std::move(here);
  }
  actors_.emplace(actor, std::move(hosted));
}

void HostedActors::kill(ActorLifeId actor, const std::string& reason, Actions& out) {
  for (auto& [hash, waiting] : waiting_) {
    if (waiting.erase(actor) > 0) return down(actor, reason, out);
  }
  const auto at = actors_.find(actor);
  LocalProcess* process = at == actors_.end() ? nullptr : locals_.find(at->second.process);
  if (process == nullptr) return not_here(actor, out);
  if (at->second.isolated) {
    locals_.kill(*process, reason, out);
  } else if (process->state == LocalProcess::State::kStarting) {
    actors_.erase(at);  // it was not sent there so far
    down(actor, reason, out);
  } else {
    out.push_back(SendLocal{process->id, wire::StopActor{actor.actor, reason}, {}});
  }
}

bool HostedActors::kill_for(JobId job, ActorId actor, const std::string& reason, Actions& out) {
  const auto at = find_if(actor, [&](const Hosted& hosted) { return hosted.job == job; });
  if (at == actors_.end()) return false;
  kill(ActorLifeId(at->first), reason, out);
  return true;
}

void HostedActors::confirm(ActorLifeId actor, std::uint64_t question, Actions& out) {
  const auto at = actors_.find(actor);
  if (at != actors_.end())
    return out.push_back(SendLocal{at->second.process, wire::ConfirmActor{actor.actor, question}, {}});
  not_here(actor, out);
}

template <class Which>
HostedActors::Lives::iterator HostedActors::find_if(ActorId actor, const Which& which) {
  for (auto at = actors_.lower_bound({actor, 0}); at != actors_.end() && at->first.actor == actor; ++at) {
    if (which(at->second)) return at;
  }
  return actors_.end();
}

HostedActors::Lives::iterator HostedActors::find(const LocalProcess& process, ActorId actor) {
  return find_if(actor, [&](const Hosted& hosted) { return hosted.process == process.id; });
}

void HostedActors::up(const LocalProcess& process, ActorId actor, Actions& out) {
  const auto at = find(process, actor);
  if (at == actors_.end()) return;
  at->second.up = true;
  head_.tell(cluster::ActorStarted{self_.info.id, actor, process.id, at->first.incarnation}, out);
}

void HostedActors::not_up(const LocalProcess& process, ActorId actor, const ErrorInfo& error, Actions& out) {
  const auto at = find(process, actor);
  if (at == actors_.end()) return;
  fail(actors_.extract(at).key(), error, out);
  if (process.isolated)
    out.push_back(SendLocal{process.id, wire::Leave{"its actor could not be constructed"}, {}});
}

void HostedActors::ended(const LocalProcess& process, const wire::ActorEnded& ended, Actions& out) {
  const auto at = find(process, ended.actor);
  if (at == actors_.end()) return;
  down(actors_.extract(at).key(), ended.reason, out, ended.on_purpose);
  if (process.isolated) out.push_back(SendLocal{process.id, wire::Leave{"its actor has ended"}, {}});
}

void HostedActors::lives(const LocalProcess& process, ActorId actor, std::uint64_t question, Actions& out) {
  if (find(process, actor) != actors_.end())
    head_.tell(cluster::ActorLives{self_.info.id, actor, question}, out);
}

void HostedActors::process_up(const LocalProcess& process, Actions& out) {
  for (auto& [actor, hosted] : actors_) {
    if (hosted.process == process.id)
      out.push_back(SendLocal{process.id, std::exchange(hosted.start, {}), {}});
  }
}

void HostedActors::process_ended(const LocalProcess& process, Actions& out) {
  for (auto at = actors_.begin(); at != actors_.end();) {
    if (at->second.process != process.id) {
      ++at;
      continue;
    }
    const ActorLifeId actor = at->first;
    const bool up = at->second.up;
    at = actors_.erase(at);
    if (up) {
      down(actor, process.end_reason, out);
    } else {
      fail(actor, {ErrorCode::kActorDied, process.label + " could not be started", process.end_reason, ""},
           out);
    }
  }
}

void HostedActors::package_done(const PackageFetches::Done& done, Instant now, Actions& out) {
  std::map<ActorLifeId, cluster::StartActor> ready;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const bool is_ready = done.is_about(at->first);
    if (is_ready) ready.merge(at->second);
    at = is_ready ? waiting_.erase(at) : std::next(at);
  }
  for (const auto& [actor, told] : ready) {
    if (done.error) {
      fail(actor, *done.error, out, true);
    } else {
      start(told, now, out);
    }
  }
}

void HostedActors::end_job(JobId job, const std::string& reason, const std::vector<ActorId>& stays,
                           Actions& out) {
  for (auto& [hash, waiting] : waiting_) {
    for (auto at = waiting.begin(); at != waiting.end();) {
      const bool is_stay = std::find(stays.begin(), stays.end(), at->first.actor) != stays.end();
      if (at->second.spec.job != job || is_stay) {
        ++at;
        continue;
      }
      down(at->first, "its job ended: " + reason, out);
      at = waiting.erase(at);
    }
  }
}

void HostedActors::keep(const cluster::KeepArguments& told, Instant now, Actions& out) {
  const auto payload = wire::decode<wire::ActorPayload>(bytes_of(told.payload));
  if (!payload) return;
  // If it does not come, the actor's next life has to be where the last one was.
  if (told.from) packages_.need(payload->package, told.from, now, out);
  const auto [at, is_new] = kept_.try_emplace(told.actor);
  if (is_new) {
    at->second.hash = wire::hash_in(payload->package);
    packages_.hold(at->second.hash, out);
  }
  at->second.payload = told.payload;
  if (told.state.version >= at->second.state.version) at->second.state = told.state;
}

bool HostedActors::keep_state(const cluster::KeepState& told) {
  const auto at = kept_.find(told.actor);
  if (at == kept_.end()) return false;
  if (at->second.state.version < told.state.version) at->second.state = told.state;
  return true;
}

const HostedActors::Kept* HostedActors::kept(ActorId actor) const {
  const auto at = kept_.find(actor);
  return at == kept_.end() ? nullptr : &at->second;
}

Result<cluster::StateSaved> HostedActors::saved(const LocalProcess& process, const wire::SaveAsk& ask) {
  constexpr int kSavesOfALife = 40;  // bits
  const auto life = find(process, ask.actor);
  const auto at = kept_.find(ask.actor);
  if (life == actors_.end() || at == kept_.end())
    return ErrorInfo{ErrorCode::kActorDied, "cannot keep the state of actor " + to_string(ask.actor),
                     "it is not in that process, or has no other life", ""};
  const std::uint32_t incarnation = life->first.incarnation;
  Kept& kept = at->second;
  cluster::SavedState state{std::max(kept.state.version + 1, std::uint64_t{incarnation} << kSavesOfALife),
                            ask.state};
  // The head would refuse it, also from a node that has nothing else for a next life.
  if (auto too_large = cluster::state_too_large(ask.actor, kept.payload.size(), state)) return *too_large;
  kept.state = state;
  return cluster::StateSaved{
      {{self_.info.id, process.id}, ask.request}, ask.actor, incarnation, std::move(state)};
}

void HostedActors::let_go(ActorId actor) {
  const auto at = kept_.find(actor);
  if (at == kept_.end()) return;
  packages_.let_go(at->second.hash);
  kept_.erase(at);
}

std::vector<cluster::LiveActor> HostedActors::live() const {
  std::vector<cluster::LiveActor> actors;
  for (const auto& [actor, hosted] : actors_) {
    actors.push_back({actor.actor, hosted.up ? hosted.process : ProcessId{}, actor.incarnation,
                      waiting_tasks_.contains(actor)});
  }
  for (const auto& [hash, waiting] : waiting_) {
    for (const auto& [actor, told] : waiting) actors.push_back({actor.actor, {}, actor.incarnation});
  }
  return actors;
}

std::set<ProcessId> HostedActors::processes_of(const std::vector<ActorId>& actors) const {
  std::set<ProcessId> all;
  for (const ActorId actor : actors) {
    for (auto at = actors_.lower_bound({actor, 0}); at != actors_.end() && at->first.actor == actor; ++at)
      all.insert(at->second.process);
  }
  return all;
}

ProcessId HostedActors::process_of(ActorId actor) const {
  const auto at = actors_.lower_bound({actor, 0});
  return at == actors_.end() || at->first.actor != actor ? ProcessId{} : at->second.process;
}

}  // namespace troupe::node
