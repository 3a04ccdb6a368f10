// Actors that are started again when they die, or outlive their driver: where they are, and what they are
// constructed with.
#include "runtime/node/answers.hpp"
#include "runtime/node/node_machine.hpp"

namespace troupe::node {

void NodeMachine::said(const cluster::ActorPlaced& e) {
  if (e.place.life == cluster::ActorLife::kEnded) actors_.let_go(e.place.actor);
  places_.told(e.place, out_);
}
void NodeMachine::said(const cluster::ArgumentsWanted& e) {
  const HostedActors::Kept* kept = actors_.kept(e.actor);
  const bool is_asker = e.to.from.node == self_.info.id;
  const std::string* given = kept != nullptr ? &kept->payload
                             : is_asker      ? head_.arguments(e.to.from.process, e.to.request)
                                             : nullptr;
  head_.tell(
      cluster::ActorArguments{e.to, e.actor, given != nullptr, given == nullptr ? std::string() : *given,
                              self_.info.id, kept == nullptr ? cluster::SavedState() : kept->state},
      out_);
}
void NodeMachine::said(const cluster::KeepArguments& e) {
  if (leaving_) return;
  keep(e);
  if (e.state.version != 0) head_.tell(cluster::StateKept{self_.info.id, e.actor, e.state.version}, out_);
}
void NodeMachine::said(const cluster::KeepState& e) {
  if (actors_.keep_state(e)) head_.tell(cluster::StateKept{self_.info.id, e.actor, e.state.version}, out_);
}
void NodeMachine::keep(const cluster::KeepArguments& e) {
  actors_.keep(e, now_, out_);
  places_.own(e.actor, e.job, out_);  // its end is to be heard
}
void NodeMachine::said(const cluster::EndJob& e) {
  const std::string reason = "its job ended: " + e.reason;
  if (e.is_recorded) head_.job_ended(e.job);
  leases_.end_job(e.job, {ErrorCode::kRefused, "no process for light actors", reason, ""}, now_, out_);
  actors_.end_job(e.job, e.reason, e.stays, out_);
  const std::set<ProcessId> stays = actors_.processes_of(e.stays);
  for (auto& [id, process] : locals_.all()) {
    if (process.job != e.job) continue;
    if (process.is_driver && !e.is_recorded) continue;  // its successor may be forgotten
    if (process.is_driver) {
      process.replaced = true;
      leases_.replaced(process, out_);
      continue;
    }
    if (!stays.contains(id)) {
      locals_.kill(process, reason, out_);
      continue;
    }
    process.driver = {};
    out_.push_back(RetryOutput{});  // lines that waited for the driver go nowhere
  }
  if (e.stays.empty()) regions_.end_job(e.job, out_);  // else they go with the processes that have them
}
void NodeMachine::said(const cluster::JobTaken& e) {
  for (auto& [id, process] : locals_.all()) {
    if (process.job == e.job && process.detached) process.driver = e.driver;
  }
  out_.push_back(RetryOutput{});  // it may have missed that the driver before went
}

/// Kept here before the head hears it: this node may be asked for it, too.
void NodeMachine::asked(LocalProcess& from, const wire::SaveAsk& ask) {
  auto saved = actors_.saved(from, ask);
  if (!saved) return out_.push_back(answer_to(from.id, ask.request, saved.error()));
  ask_head(from, ask.request, *std::move(saved), ask.state.size());
}

void NodeMachine::asked(LocalProcess& from, const wire::ResolveAsk& ask) {
  places_.ask(from, ask.actor, out_);
}

}  // namespace troupe::node
