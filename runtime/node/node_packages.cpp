// The node's part that gets executables of jobs from other nodes, and gives them.

#include <fcntl.h>

#include <algorithm>

#include "runtime/core/log.hpp"
#include "runtime/node/node.hpp"

namespace troupe {
namespace {

constexpr Duration kAskAgain = std::chrono::seconds(3);
constexpr Duration kNoProgress = std::chrono::seconds(20);
constexpr std::size_t kMaxFetches = 8;
/// Beyond this many, executables that no process runs are forgotten.
constexpr std::size_t kKeptPackages = 4;

}  // namespace

/// The executable's descriptor: -1 for our own. Nothing: it has been asked for, and the actor waits for it.
std::optional<int> Node::program_for(ActorId actor, const cluster::ActorSpec& spec,
                                     const wire::ActorPayload& payload) {
  if (payload.package.empty()) return -1;
  if (const auto at = packages_.find(payload.package); at != packages_.end()) return at->second.get();
  auto at = fetches_.find(payload.package);
  if (at == fetches_.end()) {
    if (fetches_.size() >= kMaxFetches) {
      const ErrorInfo busy{ErrorCode::kLimit, "cannot get the job's executable",
                           "this node is getting many others", "spawn it again"};
      to_head(cluster::ActorFailed{id_, actor, busy});
      return std::nullopt;
    }
    at = fetches_
             .emplace(payload.package,
                      Fetch{PackageDownload(payload.package), payload.driver.node, {}, clock_.now(), {}})
             .first;
    ask_for_package(at->second);
  }
  at->second.waiting.emplace(actor, spec);
  return std::nullopt;
}

void Node::ask_for_package(Fetch& fetch) {
  fetch.asked = clock_.now();
  to_process({fetch.from, {}}, fetch.download.next());
}

void Node::give_package(NodeId to, const wire::PackageAsk& ask) {
  wire::PackagePart part{ask.hash, ask.offset, 0, {}};
  int fd = -1;
  if (ask.hash == options_.config.package) {
    if (!own_program_) own_program_ = UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    fd = own_program_.get();
  } else if (const auto at = packages_.find(ask.hash); at != packages_.end()) {
    fd = at->second.get();
  }
  if (fd >= 0) {
    auto read = read_package_part(fd, ask);
    if (read) part = *std::move(read);
    if (!read) log(LogLevel::kError, read.error().message());
  }
  to_process({to, {}}, part);
}

void Node::take_package_part(NodeId from, const wire::PackagePart& part) {
  const auto at = fetches_.find(part.hash);
  if (at == fetches_.end() || at->second.from != from) return;
  const auto whole = at->second.download.feed(part);
  if (!whole) return end_fetch(part.hash, whole.error());
  at->second.heard = clock_.now();
  if (!*whole) return ask_for_package(at->second);
  log(LogLevel::kInfo,
      "has the executable " + part.hash.substr(0, 12) + " of " + std::to_string(part.total) + " bytes");
  forget_packages();
  packages_.insert_or_assign(part.hash, at->second.download.take());
  end_fetch(part.hash, std::nullopt);
}

void Node::end_fetch(const std::string& hash, const std::optional<ErrorInfo>& error) {
  const auto at = fetches_.find(hash);
  const auto waiting = std::move(at->second.waiting);
  fetches_.erase(at);
  for (const auto& [actor, spec] : waiting) {
    if (error) {
      to_head(cluster::ActorFailed{id_, actor, *error});
    } else {
      start_actor(actor, spec);
    }
  }
}

void Node::watch_fetches(Instant now) {
  std::vector<std::string> stuck;
  for (auto& [hash, fetch] : fetches_) {
    if (now - fetch.heard > kNoProgress) {
      stuck.push_back(hash);
    } else if (now - fetch.asked > kAskAgain) {
      ask_for_package(fetch);  // the question or the answer was lost with a connection
    }
  }
  for (const auto& hash : stuck) {
    end_fetch(hash, ErrorInfo{ErrorCode::kTimeout, "cannot get the job's executable",
                              "its node sent nothing for 20 s",
                              "check that the machines reach each other in both directions"});
  }
}

void Node::end_fetches_from(NodeId node, const std::string& reason) {
  std::vector<std::string> ended;
  for (const auto& [hash, fetch] : fetches_) {
    if (fetch.from == node) ended.push_back(hash);
  }
  for (const auto& hash : ended)
    end_fetch(hash, ErrorInfo{ErrorCode::kUnavailable, "cannot get the job's executable",
                              "its node is gone: " + reason, ""});
}

bool Node::forget_waiting(ActorId actor) {
  return std::any_of(fetches_.begin(), fetches_.end(),
                     [&](auto& fetch) { return fetch.second.waiting.erase(actor) > 0; });
}

void Node::forget_packages() {
  for (auto at = packages_.begin(); at != packages_.end() && packages_.size() >= kKeptPackages;) {
    const bool runs = std::any_of(locals_.begin(), locals_.end(),
                                  [&](const auto& local) { return local.second->package == at->first; });
    at = runs ? std::next(at) : packages_.erase(at);
  }
}

}  // namespace troupe
