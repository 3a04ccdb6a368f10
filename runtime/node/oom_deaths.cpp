#include "runtime/node/oom_deaths.hpp"

#include <algorithm>
#include <csignal>
#include <variant>

#include "runtime/core/ending.hpp"

namespace troupe::node {
namespace {

/// A process of many GiB takes its time to end.
constexpr Duration kExplainsFor = std::chrono::seconds(10);

}  // namespace

std::string ended_for_memory(const std::string& how) {
  return how + " by the kernel, since memory ran out";
}

OomDeaths::OomDeaths(Count count)
    : count_(std::move(count)), known_(count_().value_or(0)), last_look_(known_) {}

bool OomDeaths::take() {
  if (count_().value_or(0) <= known_) return false;
  ++known_;
  return true;
}

void OomDeaths::tick(Instant now) {
  if (now - looked_ < kExplainsFor) return;
  looked_ = now;
  known_ = std::max(known_, last_look_);
  last_look_ = count_().value_or(0);
}

void OomDeaths::explain(NodeEvent& event) {
  const std::string killed = ended_by_signal(SIGKILL);
  if (auto* ending = std::get_if<ProcessEnding>(&event)) {
    const bool is_asked = ending->how == killed && not_asked_.insert(ending->process).second;
    if (is_asked && take()) ending->how = ended_for_memory(killed);
  } else if (auto* ended = std::get_if<ProcessEnded>(&event)) {
    const bool is_asked = not_asked_.erase(ended->process) == 0 && ended->how == killed;
    if (is_asked && take()) ended->how = ended_for_memory(killed);
  } else if (auto* program = std::get_if<ProgramEnded>(&event)) {
    const bool is_asked = ended_.erase(program->id) == 0 && program->signal == SIGKILL;
    program->for_memory = is_asked && take();
  }
}

}  // namespace troupe::node
