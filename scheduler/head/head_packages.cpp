#include "scheduler/head/head_packages.hpp"

#include <utility>

#include "runtime/core/log.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMostHeld = 1024;

ErrorInfo takes_none() {
  return {ErrorCode::kRefused, "cannot submit the job",
          "this head keeps no packages: it has no folder for them", "start it with troupe start"};
}

}  // namespace

Result<void> HeadPackages::open(const std::function<bool(const std::string& id)>& is_named) {
  if (shelf_.folder().empty()) return {};
  const auto ids = shelf_.open();
  if (!ids) return ids.error();
  for (const std::string& id : *ids) {
    if (is_named(id)) {
      whole_.insert(id);
    } else {
      shelf_.remove(id);
    }
  }
  is_open_ = true;
  return {};
}

void HeadPackages::put(const std::string& client, const wire::PackagePart& part,
                       std::function<void(Result<wire::PackageHeld>)> answer) {
  if (!is_open_) return answer(takes_none());
  if (holders_.size() >= kMostHeld || !is_sha256_hex(part.hash))
    return answer(ErrorInfo{ErrorCode::kLimit, "cannot keep a job's package",
                            "its name is no SHA-256, or " + std::to_string(kMostHeld) + " are being brought",
                            "try again"});
  holders_[part.hash].insert(client);
  work_.post([this, part, answer = std::move(answer)] {
    auto held = shelf_.append(part);
    loop_.post([this, id = part.hash, held = std::move(held), answer] {
      if (!held) return answer(held.error());
      if (held->whole) whole_.insert(id);
      answer(wire::PackageHeld{held->next, held->whole});
    });
  });
}

void HeadPackages::read(const wire::PackageAsk& ask, std::function<void(wire::PackagePart)> give) {
  if (!is_open_) return give({ask.hash, ask.offset, 0, {}});
  work_.post([this, ask, give = std::move(give)] {
    auto part = checked(shelf_.read(ask));
    const ErrorCode wrong = part ? ErrorCode::kUnavailable : part.error().code;
    const bool is_spoilt = wrong == ErrorCode::kCorrupt || wrong == ErrorCode::kIo ||
                           wrong == ErrorCode::kLimit ||                        // of what it says of itself
                           (wrong == ErrorCode::kBadInput && ask.offset == 0);  // else a question is
    if (is_spoilt) {
      drop(ask.hash);
      log(LogLevel::kError, "package " + ask.hash.substr(0, 12) +
                                " is damaged on the head's disk, and dropped: " + part.error().why +
                                ". Jobs that need it fail until it is submitted again");
    } else if (!part) {
      log(LogLevel::kWarning, part.error().message());
    }
    wire::PackagePart given = part ? *std::move(part) : wire::PackagePart{ask.hash, ask.offset, 0, {}};
    loop_.post([this, is_spoilt, give, given = std::move(given)]() mutable {
      if (is_spoilt) whole_.erase(given.hash);
      give(std::move(given));
    });
  });
}

void HeadPackages::drop(const std::string& id) {
  checks_.erase(id);
  shelf_.remove(id);
}

Result<wire::PackagePart> HeadPackages::checked(Result<wire::PackagePart> part) {
  if (!part) return part;
  if (part->offset == 0) {
    checks_.erase(part->hash);
    checks_.try_emplace(part->hash, part->hash);
  }
  const auto at = checks_.find(part->hash);
  if (at == checks_.end() || at->second.next != part->offset) return part;  // of one that began before
  Check& check = at->second;
  check.next += part->bytes.size();
  auto fed = check.reader.feed(part->bytes);
  const bool ends = check.next >= part->total || part->bytes.empty();
  if (fed && ends && !check.reader.is_whole())
    fed = ErrorInfo{ErrorCode::kCorrupt, "cannot give a job's package", "it is cut short", "submit it again"};
  if (!fed || ends) checks_.erase(at);
  return fed ? std::move(part) : Result<wire::PackagePart>(fed.error());
}

std::optional<ErrorInfo> HeadPackages::is_missing(const std::string& id) const {
  if (whole_.contains(id)) return std::nullopt;
  if (!is_open_) return takes_none();
  return ErrorInfo{ErrorCode::kUnavailable, "cannot submit the job",
                   "its package " + id.substr(0, 12) + " is not here", "send it first"};
}

void HeadPackages::client_went(const std::string& client) {
  for (auto& [id, clients] : holders_) clients.erase(client);
}

void HeadPackages::tick(const std::function<bool(const std::string& id)>& is_named) {
  std::erase_if(holders_, [&](const auto& entry) {
    const auto& [id, clients] = entry;
    if (!clients.empty()) return false;
    if (!whole_.contains(id)) work_.post([this, dropped = id] { drop(dropped); });  // what came of it
    return true;
  });
  std::erase_if(whole_, [&](const std::string& id) {
    if (holders_.contains(id) || is_named(id)) return false;
    work_.post([this, id] { drop(id); });
    return true;
  });
}

}  // namespace troupe
