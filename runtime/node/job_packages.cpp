#include "runtime/node/job_packages.hpp"

#include <algorithm>

namespace troupe::node {
namespace {

ErrorInfo failed(ErrorCode code, std::string why, std::string todo) {
  return {code, "cannot get the job's package", std::move(why), std::move(todo)};
}

}  // namespace

void JobPackages::want(const std::string& package, Instant now, Actions& out) {
  const auto [at, is_new] = fetches_.try_emplace(package);
  if (!is_new) return;
  at->second.heard = now;
  ask(package, at->second, now, out);
}

void JobPackages::ask(const std::string& package, Fetch& fetch, Instant now, Actions& out) const {
  fetch.asked = now;
  out.push_back(AskJobPart{{package, fetch.next}});
}

std::optional<JobPackages::Done> JobPackages::part(const wire::PackagePart& part, Instant now, Actions& out) {
  const auto at = fetches_.find(part.hash);
  if (at == fetches_.end() || at->second.is_written) return std::nullopt;
  if (part.total == 0) {
    drop(part.hash, out);  // what came of it may be what is spoilt
    return Done{part.hash,
                failed(ErrorCode::kUnavailable, "the head has it no more, or its disk has spoilt it",
                       "submit the job again: its files travel again")};
  }
  if (part.offset != at->second.next) return std::nullopt;  // the answer to a question that was asked twice
  at->second.heard = now;
  at->second.is_written = true;
  at->second.total = part.total;
  out.push_back(TakeJobPart{part});
  return std::nullopt;
}

std::optional<JobPackages::Done> JobPackages::taken(const JobPartTaken& taken, Instant now, Actions& out) {
  const auto at = fetches_.find(taken.package);
  if (at == fetches_.end() || !at->second.is_written) return std::nullopt;  // of another fetch of the same
  Fetch& fetch = at->second;
  fetch.is_written = false;
  fetch.heard = now;
  if (!taken.error && !taken.whole) {
    fetch.next = taken.next;
    ask(taken.package, fetch, now, out);
    return std::nullopt;
  }
  fetches_.erase(at);
  if (!taken.error)
    out.push_back(Log{LogLevel::kInfo, "has package " + taken.package.substr(0, 12) + " of " +
                                           std::to_string(taken.next) + " bytes"});
  return Done{taken.package, taken.error};
}

std::vector<JobPackages::Done> JobPackages::tick(Instant now, Duration slip, bool head_is_up, Actions& out) {
  std::vector<Done> done;
  for (auto at = fetches_.begin(); at != fetches_.end();) {
    Fetch& fetch = at->second;
    fetch.heard = head_is_up ? std::min(now, fetch.heard + slip) : now;
    if (now - fetch.heard > self_.times.part_silence && !fetch.is_written) {
      done.push_back(
          {at->first, failed(ErrorCode::kTimeout,
                             "the head sent nothing of it for " +
                                 std::to_string(self_.times.part_silence / std::chrono::seconds(1)) + " s",
                             "look at the head's log")});
      out.push_back(DropJobPackage{at->first});
      at = fetches_.erase(at);
      continue;
    }
    if (head_is_up && now - fetch.asked > self_.times.part_again && !fetch.is_written)
      ask(at->first, fetch, now, out);
    ++at;
  }
  return done;
}

std::optional<JobPackages::Progress> JobPackages::progress(const std::string& package) const {
  const auto at = fetches_.find(package);
  if (at == fetches_.end()) return std::nullopt;
  return Progress{at->second.next, at->second.total};
}

void JobPackages::drop(const std::string& package, Actions& out) {
  fetches_.erase(package);
  out.push_back(DropJobPackage{package});
}

}  // namespace troupe::node
