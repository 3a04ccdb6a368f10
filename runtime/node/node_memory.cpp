// Memory of processes: who asked for how much, and who is ended.
#include <algorithm>

#include "runtime/node/node_machine.hpp"

namespace troupe::node {

std::vector<MemoryClaim> NodeMachine::memory_claims() {
  std::vector<MemoryClaim> claims;
  for (const auto& [id, process] : locals_.all()) {
    if (process.is_driver || process.reaped) continue;
    claims.push_back({id, {}, 0, {process.label, process.memory_asked, 0, process.is_ending()}});
  }
  submissions_.add_claims(claims);
  return claims;
}

void NodeMachine::handle(const MemoryMeasured& e) {
  const std::vector<MemoryClaim> now = memory_claims();
  NodeMemory node = e.node;
  std::vector<MemoryClaim> claims;
  std::vector<MemoryUse> uses;
  for (MemoryClaim claim : e.claims) {
    const auto at = std::find_if(now.begin(), now.end(), [&](const MemoryClaim& one) {
      return one.process == claim.process && one.submission == claim.submission &&
             one.attempt == claim.attempt;
    });
    if (at == now.end()) {  // it has ended since: its memory is free
      node.available += claim.use.has;
      continue;
    }
    claim.use.is_ending = claim.use.is_ending || at->use.is_ending;
    uses.push_back(claim.use);
    claims.push_back(std::move(claim));
  }
  const auto end = process_to_end(node, uses);
  if (!end) return;
  out_.push_back(Log{LogLevel::kWarning, end->reason + ": it is ended"});
  const MemoryClaim& claim = claims[end->which];
  if (!claim.process) return submissions_.end_for_memory(claim.submission, end->reason, out_);
  LocalProcess* process = locals_.living(claim.process);
  if (process == nullptr) return;
  locals_.kill(*process, end->reason, out_);
}

}  // namespace troupe::node
