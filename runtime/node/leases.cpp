#include "runtime/node/leases.hpp"

#include "runtime/node/answers.hpp"

namespace troupe::node {
namespace {

constexpr int kStarts = 2;  ///< of a worker, before a lease fails

ErrorInfo no_lease(ErrorCode code, std::string why, std::string todo) {
  return {code, "no process for light actors", std::move(why), std::move(todo)};
}

}  // namespace

void Leases::answer(const Asker& asker, const Result<ProcessAddress>& process, Instant now, Actions& out) {
  auto value = process.ok() ? Result<wire::Bytes>(wire::encode(wire::LeaseAnswer{*process}))
                            : Result<wire::Bytes>(process.error());
  if (asker.from.node == self_.info.id) {
    out.push_back(answer_to(asker.from.process, asker.request, std::move(value)));
    return;
  }
  ErrorInfo why;
  if (!peers_.send(asker.from, answer_of(asker.request, std::move(value)), now, why, out))
    peers_.tell_incoming(asker.from.node, why.why, out);
}

void Leases::answer_all(Lease& lease, const Result<ProcessAddress>& process, Instant now, Actions& out) {
  for (const auto& asker : std::exchange(lease.waiting, {})) answer(asker, process, now, out);
}

void Leases::ask(const LocalProcess& process, const wire::LeaseAsk& ask, Instant now, Actions& out) {
  const Asker asker{{self_.info.id, process.id}, ask.request};
  if (!process.job) {
    return answer(asker, no_lease(ErrorCode::kRefused, "this process has no job", "register a job first"),
                  now, out);
  }
  if (ask.node == self_.info.id) return add(process.job, ask.package, ask.driver, asker, now, out);
  if (passed_.size() >= self_.limits.requests) {
    return answer(asker, no_lease(ErrorCode::kLimit, "too many such requests wait for an answer", "wait"),
                  now, out);
  }
  ErrorInfo why;
  const std::uint64_t number = ++last_;
  if (!peers_.send({ask.node, {}}, wire::PeerLeaseAsk{number, process.job, ask.package, ask.driver}, now, why,
                   out, process.id, process.job)) {
    return answer(asker, why, now, out);
  }
  passed_.emplace(number, Passed{ask.node, process.id, ask.request});
}

void Leases::ask(NodeId peer, const wire::PeerLeaseAsk& ask, Instant now, Actions& out) {
  add(ask.job, ask.package, ask.driver, {{peer, {}}, ask.request}, now, out);
}

void Leases::add(JobId job, const std::string& package, ProcessAddress driver, Asker asker, Instant now,
                 Actions& out) {
  if (closed_) return answer(asker, *closed_, now, out);
  if (self_.info.gateway) {
    return answer(asker,
                  no_lease(ErrorCode::kRefused, "this node runs no actors: it is a driver's way in",
                           "ask another node"),
                  now, out);
  }
  const auto [at, is_new] = leases_.try_emplace(job);
  Lease& lease = at->second;
  if (lease.waiting.size() >= self_.limits.requests) {
    return answer(asker, no_lease(ErrorCode::kLimit, "too many such requests wait for an answer", "wait"),
                  now, out);
  }
  lease.waiting.push_back(asker);
  if (is_new) {
    lease.package = package;
    lease.driver = driver;
    // Whoever asks runs it: the driver that it names may be gone.
    lease.package_from = asker.from.node == self_.info.id ? driver.node : asker.from.node;
    head_.tell(cluster::LeaseRequested{self_.info.id, job}, out);
  } else if (lease.granted) {
    advance(job, lease, now, out);
  }
}

void Leases::answered(const cluster::LeaseAnswered& answer, Instant now, Actions& out) {
  const auto at = leases_.find(answer.job);
  if (at == leases_.end() || at->second.granted) return;
  if (!answer.ok) return end_job(answer.job, no_lease(ErrorCode::kRefused, answer.reason, ""), now, out);
  at->second.granted = true;
  if (answer.driver.process) at->second.driver = answer.driver;
  advance(answer.job, at->second, now, out);
}

void Leases::answered(NodeId peer, const wire::Answer& answer, Actions& out) {
  const auto at = passed_.find(answer.request);
  if (at == passed_.end() || at->second.node != peer) return;
  wire::Answer mine = answer;
  mine.request = at->second.request;
  out.push_back(SendLocal{at->second.process, std::move(mine), {}});
  passed_.erase(at);
}

void Leases::advance(JobId job, Lease& lease, Instant now, Actions& out) {
  if (lease.waiting.empty()) return;
  const LocalProcess* worker = locals_.shared(job);
  if (worker != nullptr && worker->state == LocalProcess::State::kUp) {
    lease.failures = 0;
    return answer_all(lease, ProcessAddress{self_.info.id, worker->id}, now, out);
  }
  if (worker != nullptr) return;  // it has not said hello yet
  switch (packages_.need(lease.package, lease.package_from, now, out)) {
    case PackageFetches::Need::kComing:
      return;
    case PackageFetches::Need::kBusy:
      return answer_all(
          lease, no_lease(ErrorCode::kLimit, "this node is getting many other executables", "spawn again"),
          now, out);
    case PackageFetches::Need::kHere:
      locals_.start({"worker", job, false, lease.driver, lease.package}, now, out);
  }
}

void Leases::process_up(const LocalProcess& process, Instant now, Actions& out) {
  if (process.isolated) return;
  const auto at = leases_.find(process.job);
  if (at != leases_.end() && at->second.granted) advance(at->first, at->second, now, out);
}

void Leases::process_ended(const LocalProcess& process, Instant now, Actions& out) {
  for (auto at = passed_.begin(); at != passed_.end();) {
    at = at->second.process == process.id ? passed_.erase(at) : std::next(at);
  }
  const auto at = leases_.find(process.job);
  if (process.isolated || process.is_driver || at == leases_.end() || at->second.waiting.empty()) return;
  Lease& lease = at->second;
  if (!lease.granted) return;  // it was of the lease before; the head's answer decides
  if (++lease.failures < kStarts) return advance(at->first, lease, now, out);
  lease.failures = 0;
  answer_all(lease,
             no_lease(ErrorCode::kActorDied, "its worker could not be started: " + process.end_reason, ""),
             now, out);
}

void Leases::package_done(const PackageFetches::Done& done, Instant now, Actions& out) {
  for (auto& [job, lease] : leases_) {
    if (!lease.granted || !done.is_about(lease.package)) continue;
    if (done.error) {
      answer_all(lease, *done.error, now, out);
    } else {
      advance(job, lease, now, out);
    }
  }
}

void Leases::end_job(JobId job, const ErrorInfo& error, Instant now, Actions& out) {
  const auto at = leases_.find(job);
  if (at == leases_.end()) return;
  auto lease = std::move(at->second);
  leases_.erase(at);
  answer_all(lease, error, now, out);
}

void Leases::driver_gone(ProcessAddress driver, const std::string& reason, Instant now, Actions& out) {
  std::vector<JobId> its;
  for (const auto& [job, lease] : leases_) {
    const bool of_it = lease.driver == driver || (!driver.process && lease.driver.node == driver.node);
    if (lease.granted && of_it) its.push_back(job);
  }
  for (const JobId job : its)
    end_job(job, no_lease(ErrorCode::kUnavailable, reason, "spawn again"), now, out);
}

void Leases::replaced(const LocalProcess& driver, Actions& out) {
  for (auto at = passed_.begin(); at != passed_.end();) {
    if (at->second.process != driver.id) {
      ++at;
      continue;
    }
    out.push_back(answer_to(driver.id, at->second.request, node::replaced("no process for light actors")));
    at = passed_.erase(at);
  }
}

void Leases::close(const ErrorInfo& error, Instant now, Actions& out) {
  closed_ = error;
  while (!leases_.empty()) end_job(leases_.begin()->first, error, now, out);
}

void Leases::peer_lost(NodeId node, const ErrorInfo& error, Actions& out) {
  for (auto at = passed_.begin(); at != passed_.end();) {
    if (at->second.node != node) {
      ++at;
      continue;
    }
    out.push_back(answer_to(at->second.process, at->second.request, error));
    at = passed_.erase(at);
  }
}

void Leases::repeat(Actions& out) const {
  for (const auto& [job, lease] : leases_) {
    if (!lease.granted) out.push_back(TellHead{cluster::LeaseRequested{self_.info.id, job}});
  }
}

std::vector<JobId> Leases::jobs() const {
  std::vector<JobId> jobs;
  for (const auto& [job, lease] : leases_) {
    if (lease.granted) jobs.push_back(job);
  }
  return jobs;
}

}  // namespace troupe::node
