#include "runtime/node/actor_places.hpp"

namespace troupe::node {

ActorPlaces::Watched& ActorPlaces::watch(ActorId actor, JobId job, Actions& out) {
  const auto [at, is_new] = actors_.try_emplace(actor);
  if (is_new) {
    at->second.job = job;
    head_.tell(cluster::ResolveActor{self_.info.id, job, actor}, out);
  }
  return at->second;
}

void ActorPlaces::ask(const LocalProcess& process, ActorId actor, Actions& out) {
  if (actors_.size() >= self_.limits.requests && !actors_.contains(actor)) {
    cluster::ActorPlace none{actor};
    none.reason = "its place cannot be looked up: processes of this node call too many that may move";
    return out.push_back(SendLocal{process.id, wire::ActorAt{std::move(none)}, {}});
  }
  Watched& watched = watch(actor, process.job, out);
  watched.by.insert(process.id);
  if (watched.last) out.push_back(SendLocal{process.id, wire::ActorAt{*watched.last}, {}});
}

void ActorPlaces::own(ActorId actor, JobId job, Actions& out) {
  watch(actor, job, out).owned = true;
}

void ActorPlaces::told(const cluster::ActorPlace& place, Actions& out) {
  if (place.life == cluster::ActorLife::kEnded) head_.let_go(place.actor);
  const auto at = actors_.find(place.actor);
  if (at == actors_.end()) return;
  // A head that started again may have forgotten that this life is up: calls under way there are not lost.
  const auto& last = at->second.last;
  if (last && last->incarnation == place.incarnation && last->life == cluster::ActorLife::kLives &&
      place.life == cluster::ActorLife::kRestarts)
    return;
  for (const ProcessId process : at->second.by) out.push_back(SendLocal{process, wire::ActorAt{place}, {}});
  at->second.last = place;
  if (place.life == cluster::ActorLife::kEnded) actors_.erase(at);
}

void ActorPlaces::process_ended(ProcessId process) {
  for (auto at = actors_.begin(); at != actors_.end();) {
    Watched& watched = at->second;
    watched.by.erase(process);
    at = watched.by.empty() && !watched.owned ? actors_.erase(at) : std::next(at);
  }
}

void ActorPlaces::repeat(Actions& out) const {
  for (const auto& [actor, watched] : actors_)
    head_.tell(cluster::ResolveActor{self_.info.id, watched.job, actor}, out);
}

}  // namespace troupe::node
