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
  // What ends, or has ended since, gives memory back that was measured: the next look tells.
  const std::vector<MemoryClaim> now = memory_claims();
  const auto runs_on = [&](const MemoryClaim& claim) {
    return std::any_of(now.begin(), now.end(), [&](const MemoryClaim& one) {
      return one.process == claim.process && one.submission == claim.submission &&
             one.attempt == claim.attempt && !one.use.is_ending;
    });
  };
  if (!std::all_of(e.claims.begin(), e.claims.end(), runs_on)) return;
  std::vector<MemoryUse> uses;
  for (const MemoryClaim& claim : e.claims) uses.push_back(claim.use);
  const auto end = process_to_end(e.node, uses);
  if (!end) return;
  out_.push_back(Log{LogLevel::kWarning, end->reason + ": it is ended"});
  const MemoryClaim& claim = e.claims[end->which];
  if (!claim.process) return submissions_.end_for_memory(claim.submission, end->reason, out_);
  LocalProcess* process = locals_.living(claim.process);
  if (process == nullptr) return;
  locals_.kill(*process, end->reason, out_);
}

}  // namespace troupe::node
