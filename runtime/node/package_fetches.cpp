#include "runtime/node/package_fetches.hpp"

#include <algorithm>

#include "runtime/wire/package_name.hpp"

namespace troupe::node {

bool PackageFetches::Done::is_about(const std::string& package) const {
  return libraries.empty() ? wire::hash_in(package) == hash : wire::libraries_in(package) == libraries;
}

PackageFetches::Need PackageFetches::need(const std::string& package, NodeId node, Instant now,
                                          Actions& out) {
  const std::string hash = wire::hash_in(package);
  const bool has_libraries = libraries_.need(package, out);
  if (hash.empty() || hash == wire::hash_in(self_.package) || here_.contains(hash))
    return has_libraries ? Need::kHere : Need::kComing;
  if (fetches_.contains(hash) || read_.contains(hash)) return Need::kComing;
  if (fetches_.size() >= self_.limits.fetches) return Need::kBusy;
  Fetch& fetch = fetches_[hash];
  fetch.from = node;
  fetch.heard = now;
  ask(hash, fetch, now, out);
  return Need::kComing;
}

bool PackageFetches::ask(const std::string& hash, Fetch& fetch, Instant now, Actions& out) {
  fetch.asked = now;
  ErrorInfo why;
  return peers_.send({fetch.from, {}}, wire::PackageAsk{hash, fetch.next}, now, why, out);
}

void PackageFetches::give(NodeId to, const wire::PackageAsk& ask, Instant now, Actions& out) {
  const bool own = !self_.package.empty() && ask.hash == wire::hash_in(self_.package);
  ErrorInfo why;
  if (!own && !here_.contains(ask.hash)) {
    if (read_.contains(ask.hash)) return;  // it asks again
    peers_.send({to, {}}, wire::PackagePart{ask.hash, ask.offset, 0, {}}, now, why, out);
    return;
  }
  constexpr std::size_t kPieceBytes = std::size_t{513} << 10;
  const Way way = peers_.way(to, kPieceBytes, now, why, out);
  if (way != Way::kRefuse) out.push_back(GivePart{to, ask, own, way == Way::kHold});  // else it asks again
}

void PackageFetches::part(NodeId from, const wire::PackagePart& part, Instant now, Actions& out) {
  const auto at = fetches_.find(part.hash);
  if (at == fetches_.end() || at->second.from != from || at->second.waits_for_disk) return;
  at->second.heard = now;
  at->second.waits_for_disk = true;
  out.push_back(TakePart{part});
}

std::optional<PackageFetches::Done> PackageFetches::taken(const PartTaken& taken, Instant now, Actions& out) {
  if (read_.erase(taken.hash) != 0) {
    if (taken.error && !here_.contains(taken.hash)) return Done{taken.hash, taken.error};
    here_.insert(taken.hash);
    return Done{taken.hash, std::nullopt};
  }
  const auto at = fetches_.find(taken.hash);
  if (at == fetches_.end()) return std::nullopt;
  at->second.waits_for_disk = false;
  if (taken.error) {
    fetches_.erase(at);
    if (!here_.contains(taken.hash)) out.push_back(ForgetPackage{taken.hash});
    return Done{taken.hash, taken.error};
  }
  at->second.next = taken.next;
  if (!taken.whole) {
    ask(taken.hash, at->second, now, out);
    return std::nullopt;
  }
  out.push_back(Log{LogLevel::kInfo, "has the executable " + taken.hash.substr(0, 12) + " of " +
                                         std::to_string(taken.next) + " bytes"});
  arrived(taken.hash, out);
  fetches_.erase(at);
  return Done{taken.hash, std::nullopt};
}

void PackageFetches::brought(const std::string& package, Actions& out) {
  const std::string hash = wire::hash_in(package);
  if (hash != wire::hash_in(self_.package) && !here_.contains(hash)) arrived(hash, out);
}

void PackageFetches::arrived(const std::string& hash, Actions& out) {
  trim(out);
  here_.insert(hash);
  if (held_.contains(hash)) out.push_back(KeepExecutable{hash});
}

void PackageFetches::hold(const std::string& hash, Actions& out) {
  if (!held_.contains(hash) && here_.contains(hash)) out.push_back(KeepExecutable{hash});
  held_.insert(hash);
}

void PackageFetches::trim(Actions& out) {
  for (auto at = here_.begin(); at != here_.end() && here_.size() >= self_.limits.packages;) {
    if (locals_.any_runs(*at) || held_.contains(*at)) {
      ++at;
    } else {
      out.push_back(ForgetPackage{*at});
      at = here_.erase(at);
    }
  }
}

PackageFetches::Done PackageFetches::end(const std::string& hash, ErrorCode code, std::string why,
                                         std::string todo, Actions& out) {
  fetches_.erase(hash);
  if (!here_.contains(hash)) out.push_back(ForgetPackage{hash});  // a driver of this node may have brought it
  return {hash, ErrorInfo{code, "cannot get the job's executable", std::move(why), std::move(todo)}};
}

std::vector<PackageFetches::Done> PackageFetches::tick(Instant now, Duration slip, Actions& out) {
  std::vector<std::string> stuck;
  for (auto& [hash, fetch] : fetches_) {
    fetch.heard = std::min(now, fetch.heard + slip);
    if (now - fetch.heard > self_.times.part_silence) {
      stuck.push_back(hash);
    } else if (now - fetch.asked > self_.times.part_again && !fetch.waits_for_disk) {
      ask(hash, fetch, now, out);  // the question or the answer was lost with a connection
    }
  }
  std::vector<Done> done;
  done.reserve(stuck.size());
  for (const auto& hash : stuck) {
    done.push_back(end(hash, ErrorCode::kTimeout,
                       "its node sent nothing for " +
                           std::to_string(self_.times.part_silence / std::chrono::seconds(1)) + " s",
                       "check that the machines reach each other in both directions", out));
  }
  return done;
}

std::vector<PackageFetches::Done> PackageFetches::peer_died(NodeId node, const std::string& reason,
                                                            Actions& out) {
  std::vector<std::string> ended;
  for (const auto& [hash, fetch] : fetches_) {
    if (fetch.from == node) ended.push_back(hash);
  }
  std::vector<Done> done;
  done.reserve(ended.size());
  for (const auto& hash : ended)
    done.push_back(end(hash, ErrorCode::kUnavailable, "its node is gone: " + reason, "", out));
  return done;
}

}  // namespace troupe::node
