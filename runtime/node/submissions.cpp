#include "runtime/node/submissions.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "runtime/core/ending.hpp"
#include "runtime/node/oom_deaths.hpp"

namespace troupe::node {
namespace {

/// Of a shell that finds no program, and of a loader that finds no library.
constexpr int kNotFound = 127;

}  // namespace

Submissions::Driver* Submissions::living(const std::string& id, std::int32_t attempt) {
  const auto at = all_.find(id);
  const bool lives = at != all_.end() && at->second.attempt == attempt && at->second.state != State::kEnded;
  return lives ? &at->second : nullptr;
}

bool Submissions::runs(const std::string& id) const {
  const auto at = all_.find(id);
  return at != all_.end() && at->second.state == State::kRuns;
}

bool Submissions::any_runs() const {
  return std::any_of(all_.begin(), all_.end(), [](const auto& d) { return d.second.state != State::kEnded; });
}

bool Submissions::names(const std::string& package) const {
  return std::any_of(package_of_.begin(), package_of_.end(),
                     [&](const auto& p) { return p.second == package; });
}

std::vector<PackageOnItsWay> Submissions::packages() const {
  std::vector<PackageOnItsWay> all;
  for (const auto& [id, driver] : all_) {
    const auto progress = driver.prepares ? packages_.progress(driver.spec.package) : std::nullopt;
    if (progress) all.push_back({id, progress->bytes, progress->total});
  }
  return all;
}

void Submissions::add_claims(std::vector<MemoryClaim>& claims) const {
  for (const auto& [id, driver] : all_) {
    if (driver.state == State::kRuns)
      claims.push_back({{},
                        id,
                        driver.attempt,
                        {id.starts_with("job-") ? id : "job " + id, memory_of(driver.spec.other), 0,
                         driver.killed || !driver.memory_reason.empty()}});
  }
}

void Submissions::end_for_memory(const std::string& id, const std::string& reason, Actions& out) {
  const auto at = all_.find(id);
  if (at == all_.end() || at->second.state != State::kRuns || !at->second.memory_reason.empty()) return;
  at->second.memory_reason = reason;
  out.push_back(KillProgram{id});
}

void Submissions::start(const cluster::StartDriver& told, Actions& out) {
  const std::string& id = told.spec.id;
  const auto at = all_.find(id);
  if (at != all_.end()) {
    Driver& known = at->second;
    if (known.state != State::kEnded) return;  // one at a time; the head hears of it when it has ended
    if (known.attempt == told.attempt)
      return head_.tell(cluster::DriverEnded{self_.info.id, id, known.attempt, known.end}, out);
    all_.erase(at);
  }
  Driver& driver = all_[id];
  driver.spec = told.spec;
  driver.attempt = told.attempt;
  driver.gpus = told.gpus;
  if (!leaving_.empty()) return ended(driver, {.again = true, .how = "its node leaves: " + leaving_}, out);
  files_.insert(id);
  if (driver.spec.package.empty()) return run(driver, out);
  driver.prepares = true;
  package_of_[id] = driver.spec.package;
  out.push_back(UnpackJob{driver.spec});
}

void Submissions::run(Driver& driver, Actions& out) {
  driver.prepares = false;
  out.push_back(StartProgram{driver.spec, driver.attempt, driver.gpus});
}

void Submissions::unpacked(const JobUnpacked& e, Instant now, Actions& out) {
  const auto at = all_.find(e.id);
  if (at == all_.end() || !at->second.prepares) {
    if (!files_.contains(e.id)) out.push_back(RemoveJobFiles{e.id});  // it was forgotten meanwhile
    return;
  }
  Driver& driver = at->second;
  if (e.is_missing) return packages_.want(driver.spec.package, now, out);
  if (e.error) return ended(driver, {.how = e.error->message()}, out);
  run(driver, out);
}

void Submissions::part(const HeadGavePart& e, Instant now, Actions& out) {
  if (const auto done = packages_.part(e.part, now, out)) package_done(*done, out);
}

void Submissions::part_taken(const JobPartTaken& e, Instant now, Actions& out) {
  if (const auto done = packages_.taken(e, now, out)) package_done(*done, out);
}

void Submissions::package_done(const JobPackages::Done& done, Actions& out) {
  for (auto& [id, driver] : all_) {
    if (!driver.prepares || driver.spec.package != done.package) continue;
    if (done.error) {
      ended(driver, {.how = done.error->message()}, out);
    } else {
      out.push_back(UnpackJob{driver.spec});
    }
  }
}

void Submissions::program_started(const ProgramStarted& e, Instant now, Actions& out) {
  Driver* driver = living(e.id, e.attempt);
  if (driver == nullptr) return;
  driver->state = State::kRuns;
  head_.tell(cluster::DriverStarted{self_.info.id, e.id, e.attempt}, out);
  if (driver->stopping) tell_to_end(*driver, now, out);
}

void Submissions::program_not_started(const ProgramNotStarted& e, Actions& out) {
  if (Driver* driver = living(e.id, e.attempt)) ended(*driver, {.how = e.error.message()}, out);
}

void Submissions::program_ended(const ProgramEnded& e, Actions& out) {
  Driver* driver = living(e.id, e.attempt);
  if (driver == nullptr) return;
  cluster::DriverEnd end{.ran = true, .exit_code = e.signal > 0 ? -1 : e.code, .signal = e.signal};
  end.how = e.signal > 0 ? ended_by_signal(e.signal) : ended_with_code(e.code);
  if (e.for_memory) end.how = ended_for_memory(end.how);
  if (e.signal == 0 && e.code == kNotFound)
    end.how +=
        ", as loaders and shells end where a library or a program is not there: its output says which, "
        "and --with-libraries takes libraries along";
  if (!driver->memory_reason.empty()) {
    end.how = ended_on_order(driver->memory_reason, end.how);
  } else if (!driver->leave_reason.empty()) {
    // It did as it was told, which is no success.
    end.exit_code = -1;
    end.how = ended_on_order("its node leaves: " + driver->leave_reason, end.how);
  }
  ended(*driver, std::move(end), out);
}

void Submissions::ended(Driver& driver, cluster::DriverEnd end, Actions& out) {
  driver.state = State::kEnded;
  driver.prepares = false;
  driver.end = std::move(end);
  head_.tell(cluster::DriverEnded{self_.info.id, driver.spec.id, driver.attempt, driver.end}, out);
}

void Submissions::stop(const cluster::StopDriver& told, Instant now, Actions& out) {
  Driver* driver = living(told.id, told.attempt);
  if (driver == nullptr) {
    const auto at = all_.find(told.id);
    const bool known = at != all_.end() && at->second.attempt == told.attempt;
    const cluster::DriverEnd end =
        known ? at->second.end : cluster::DriverEnd{.how = "it is not on its node"};
    return head_.tell(cluster::DriverEnded{self_.info.id, told.id, told.attempt, end}, out);
  }
  if (driver->prepares) return ended(*driver, {.how = "it had not started"}, out);
  if (std::exchange(driver->stopping, true)) return;
  driver->grace = std::chrono::seconds(told.grace_s);
  if (driver->state == State::kRuns) tell_to_end(*driver, now, out);
}

void Submissions::tell_to_end(Driver& driver, Instant now, Actions& out) {
  driver.kill_at = now + driver.grace;
  if (driver.grace > Duration(0)) return out.push_back(SignalProgram{driver.spec.id, SIGTERM});
  driver.killed = true;
  out.push_back(KillProgram{driver.spec.id});
}

void Submissions::tick(Instant now, Duration slip, Actions& out) {
  for (const auto& done : packages_.tick(now, slip, head_.up(), out)) package_done(done, out);
  for (auto& [id, driver] : all_) {
    if (driver.state != State::kRuns || !driver.stopping || driver.killed) continue;
    driver.kill_at += slip;
    if (now < driver.kill_at) continue;
    driver.killed = true;
    out.push_back(KillProgram{id});
  }
}

void Submissions::leave(const std::string& reason, Instant now, Actions& out) {
  leaving_ = reason;
  for (auto& [id, driver] : all_) {
    if (driver.state == State::kEnded) continue;
    if (driver.prepares) {
      ended(driver, {.again = true, .how = "its node leaves: " + reason}, out);
      continue;
    }
    driver.leave_reason = reason;
    const bool was_stopping = std::exchange(driver.stopping, true);
    driver.grace = self_.times.leave_grace;
    if (driver.state != State::kRuns) continue;
    if (was_stopping) {
      driver.kill_at = std::min(driver.kill_at, now + driver.grace);
    } else {
      tell_to_end(driver, now, out);
    }
  }
}

void Submissions::settled(const cluster::DriverSettled& told) {
  const auto at = all_.find(told.id);
  if (at != all_.end() && at->second.attempt == told.attempt && at->second.state == State::kEnded)
    all_.erase(at);
}

void Submissions::forget(const cluster::ForgetSubmission& told, Actions& out) {
  const auto at = all_.find(told.id);
  if (at != all_.end() && at->second.state != State::kEnded)
    return;  // it is being ended, and listed again at the next join
  if (at != all_.end()) all_.erase(at);
  if (files_.erase(told.id) == 1) out.push_back(RemoveJobFiles{told.id});
  const auto package = package_of_.extract(told.id);
  const auto needs_it = [&](const auto& other) { return other.second == package.mapped(); };
  if (!package.empty() && std::none_of(package_of_.begin(), package_of_.end(), needs_it))
    packages_.drop(package.mapped(), out);
}

std::vector<cluster::HeldDriver> Submissions::held() const {
  std::vector<cluster::HeldDriver> all;
  for (const auto& [id, driver] : all_) all.push_back({id, driver.attempt, driver.state, driver.end});
  for (const std::string& id : files_) {
    if (!all_.contains(id)) all.push_back({id, 0, State::kFiles, {}});
  }
  return all;
}

}  // namespace troupe::node
