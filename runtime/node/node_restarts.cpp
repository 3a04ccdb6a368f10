// Actors that are started again when they die: where they are, and what they are constructed with.
#include "runtime/node/node_machine.hpp"

namespace troupe::node {

void NodeMachine::said(const cluster::ActorPlaced& e) {
  places_.told(e.place, out_);
}
void NodeMachine::said(const cluster::ArgumentsWanted& e) {
  const std::string* kept = head_.arguments(e.to.from.process, e.to.request);
  head_.tell(cluster::ActorArguments{e.to, e.actor, kept != nullptr, kept == nullptr ? std::string() : *kept},
             out_);
}

void NodeMachine::asked(LocalProcess& from, const wire::ResolveAsk& ask) {
  places_.ask(from, ask.actor, out_);
}

}  // namespace troupe::node
