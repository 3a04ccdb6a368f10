#include "runtime/node/local_processes.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"
#include "runtime/core/ending.hpp"
#include "runtime/wire/package_name.hpp"

namespace troupe::node {

LocalProcess& LocalProcesses::add(LocalProcess process, Actions& out, Attach::Kind attach) {
  const ProcessId id = process.id;
  out.push_back(SendLocal{id,
                          wire::Configure{self_.info.id, id, process.job, process.label, self_.host,
                                          process.package, process.driver},
                          {attach, {}}});
  return all_.insert_or_assign(id, std::move(process)).first->second;
}

LocalProcess& LocalProcesses::start(const NewWorker& worker, Instant now, Actions& out) {
  LocalProcess process;
  process.id = {ids_.next()};
  process.job = worker.job;
  process.label = worker.label;
  process.package = worker.package;
  process.driver = worker.driver;
  process.isolated = worker.isolated;
  process.detached = worker.detached;
  process.memory_asked = worker.memory_asked;
  process.heard = now;
  out.push_back(
      StartWorker{process.id, process.label, process.package, worker.gpus, process.driver, process.job});
  if (!worker.isolated) shared_[worker.job] = process.id;
  return add(std::move(process), out, Attach::kLifeLock);
}

LocalProcess& LocalProcesses::adopt_driver(Instant now, Actions& out) {
  TROUPE_ASSERT(!parent_, "a node has one parent");
  LocalProcess process;
  process.id = parent_ = {ids_.next()};
  process.is_parent = true;
  process.label = "driver";
  process.package = self_.package;
  process.is_driver = true;
  process.heard = now;
  out.push_back(AdoptDriver{process.id});
  return add(std::move(process), out, Attach::kNothing);
}

LocalProcess& LocalProcesses::adopt_driver_of(const DriverKnocked& knock, Instant now, Actions& out) {
  LocalProcess process;
  process.id = {ids_.next()};
  process.label = "driver";
  process.package = knock.hello.package;
  process.is_driver = true;
  process.submission = knock.id;
  process.heard = now;
  out.push_back(AdoptDriver{process.id, knock.connection, process.package});
  return add(std::move(process), out, Attach::kNothing);
}

void LocalProcesses::kill(LocalProcess& process, const std::string& reason, Actions& out) {
  if (!process.lives() || !process.kill_reason.empty()) return;
  process.kill_reason = reason;
  out.push_back(KillProcess{process.id, reason});
}

void LocalProcesses::tell_to_leave(LocalProcess& process, const std::string& reason, Actions& out) {
  if (!process.lives()) return;
  process.leave_reason = reason;
  out.push_back(SendLocal{process.id, wire::Leave{reason}, {}});
}

bool LocalProcesses::begin_end(LocalProcess& process, const std::string& how) {
  if (!process.lives()) return false;
  process.state = LocalProcess::State::kEnding;
  const std::string& why = process.kill_reason.empty() ? process.leave_reason : process.kill_reason;
  process.end_reason = why.empty() ? how : ended_on_order(why, how);
  return true;
}

void LocalProcesses::finish_end(LocalProcess& process, const std::string& last_line) {
  TROUPE_ASSERT(process.state == LocalProcess::State::kEnding, "a death is told once, after it was seen");
  process.state = LocalProcess::State::kDead;
  // A process that ended itself may have said why; one that was killed from outside has not.
  if (ended_by_itself(process.end_reason))
    process.end_reason = with_last_line(process.end_reason, last_line, !process.isolated);
  dead_.add(process.id, process.end_reason);
  const auto shared = shared_.find(process.job);
  if (shared != shared_.end() && shared->second == process.id) shared_.erase(shared);
  if (process.id == parent_) parent_ = {};
}

void LocalProcesses::tick(Instant now, Duration slip, Actions& out) {
  for (auto& [id, process] : all_) {
    process.heard = std::min(now, process.heard + slip);
    if (process.is_driver || !process.lives()) continue;  // a driver's death is its link's end
    const bool up = process.state == LocalProcess::State::kUp;
    const Duration allowed = up ? self_.times.silence : self_.times.start;
    if (now - process.heard <= allowed) continue;
    const std::string seconds = std::to_string(allowed / std::chrono::seconds(1)) + " s";
    kill(process, up ? "no sign of life for " + seconds : "it did not start within " + seconds, out);
  }
}

LocalProcess* LocalProcesses::find(ProcessId process) {
  const auto at = all_.find(process);
  return at == all_.end() ? nullptr : &at->second;
}

LocalProcess* LocalProcesses::living(ProcessId process) {
  LocalProcess* found = find(process);
  return found != nullptr && found->lives() ? found : nullptr;
}

LocalProcess* LocalProcesses::shared(JobId job) {
  const auto at = shared_.find(job);
  LocalProcess* process = at == shared_.end() ? nullptr : living(at->second);
  return process == nullptr || !process->kill_reason.empty() ? nullptr : process;
}

bool LocalProcesses::any_runs(const std::string& hash) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const auto& p) { return wire::hash_in(p.second.package) == hash; });
}

bool LocalProcesses::any_has_libraries(const std::string& package) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const auto& p) { return wire::libraries_in(p.second.package) == package; });
}

bool LocalProcesses::any_driver_has_libraries(const std::string& package) const {
  return std::any_of(all_.begin(), all_.end(), [&](const auto& p) {
    return p.second.is_driver && p.second.lives() && wire::libraries_in(p.second.package) == package;
  });
}

void LocalProcesses::tell_all(const wire::Control& message, Actions& out) const {
  for (const auto& [id, process] : all_) {
    if (process.lives()) out.push_back(SendLocal{id, message, {}});
  }
}

}  // namespace troupe::node
