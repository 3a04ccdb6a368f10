#include "collectives/rendezvous/store/store_core.hpp"

#include <algorithm>

namespace troupe::collectives {

bool StoreCore::fits(const std::string& key, std::size_t value_bytes) const {
  const auto found = values_.find(key);
  const std::size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  return bytes() - before + key.size() + value_bytes <= kMaxStoreBytes;
}

void StoreCore::put(const std::string& key, std::string value, Replies& replies) {
  auto [at, fresh] = values_.try_emplace(key);
  if (fresh) bytes_ += key.size();
  bytes_ = bytes_ - at->second.size() + value.size();
  at->second = std::move(value);
  const auto waiting = waiters_.find(key);
  if (waiting == waiters_.end()) return;
  for (const WaitId& id : std::vector<WaitId>(waiting->second)) {
    forget_wait(id);
    replies.push_back({id.first, {id.second, StoreStatus::kOk, 0, at->second}});
  }
}

void StoreCore::forget_wait(const WaitId& id) {
  const auto wait = waits_.find(id);
  if (wait == waits_.end()) return;
  deadlines_.erase({wait->second.deadline, id});
  auto& waiting = waiters_[wait->second.key];
  std::erase(waiting, id);
  if (waiting.empty()) waiters_.erase(wait->second.key);
  waits_.erase(wait);
}

StoreResponse StoreCore::set(const StoreRequest& request, Replies& replies) {
  if (!fits(request.key, request.value.size())) return {.status = StoreStatus::kLimit};
  put(request.key, request.value, replies);
  return {};
}

/// Empty: it waits.
std::optional<StoreResponse> StoreCore::find(Client client, const StoreRequest& request, Instant now) {
  if (const auto found = values_.find(request.key); found != values_.end())
    return StoreResponse{.value = found->second};
  if (request.wait_ms == 0) return StoreResponse{.status = StoreStatus::kAbsent};
  const WaitId id{client, request.id};
  const auto waits = std::distance(waits_.lower_bound({client, 0}), waits_.upper_bound({client, UINT32_MAX}));
  if (waits_.contains(id)) return StoreResponse{.status = StoreStatus::kBad};
  if (waits >= static_cast<std::ptrdiff_t>(kMaxWaits)) return StoreResponse{.status = StoreStatus::kLimit};
  Wait& wait = waits_[id];
  wait.key = request.key;
  waiters_[request.key].push_back(id);
  wait.deadline = now + std::chrono::milliseconds(request.wait_ms);
  deadlines_.insert({wait.deadline, id});
  return std::nullopt;
}

std::int64_t StoreCore::erase(const std::string& prefix) {
  std::int64_t erased = 0;
  for (auto at = values_.lower_bound(prefix); at != values_.end() && at->first.starts_with(prefix);
       ++erased) {
    bytes_ -= at->first.size() + at->second.size();
    at = values_.erase(at);
  }
  return erased;
}

StoreResponse StoreCore::join(Client client, int rank, const std::string& who, Replies& replies) {
  const auto [at, fresh] = members_.try_emplace(rank, Member{client, true, {false, who}});
  if (!fresh) {
    return {.status = at->second.here ? StoreStatus::kTaken : StoreStatus::kOver,
            .value = at->second.departure.who};
  }
  ++present_;
  for (const auto& [other, member] : members_) {
    const auto& [died, whose] = member.departure;
    if (!member.here)
      replies.push_back({client, {0, died ? StoreStatus::kLost : StoreStatus::kLeft, other, whose}});
  }
  return {};
}

bool StoreCore::speaks(Client client, int rank) const {
  const auto member = members_.find(rank);
  return member != members_.end() && member->second.here && member->second.client == client;
}

void StoreCore::go(int rank, bool died, Replies& replies) {
  Member& gone = members_.at(rank);
  gone.departure.died = died;
  if (std::exchange(gone.here, false)) --present_;
  for (const auto& [other, member] : members_) {
    if (!member.here) continue;
    replies.push_back(
        {member.client, {0, died ? StoreStatus::kLost : StoreStatus::kLeft, rank, gone.departure.who}});
  }
  formations_.on_gone(rank, gone.departure, replies);
  clear_ended();
}

StoreCore::Replies StoreCore::on_lost(int rank, const Departure& departure) {
  Replies replies;
  if (members_.try_emplace(rank, Member{0, false, departure}).second) go(rank, departure.died, replies);
  return replies;
}

void StoreCore::take_part(Client client, int rank, const StoreRequest& request, Instant now,
                          Replies& replies) {
  const Formations::From from{client, rank};
  const auto refuse = [&](StoreStatus status) { replies.push_back({client, {request.id, status}}); };
  if (!speaks(client, rank)) return refuse(StoreStatus::kBad);
  if (request.op == StoreOp::kMore) return formations_.more(from, request, replies);
  if (request.op == StoreOp::kReady) {
    formations_.ready(from, request, now, replies);
  } else if (request.op == StoreOp::kFail) {
    formations_.fail(from, request, replies);
  } else {
    const auto entry = decode_entry(request.value);
    if (!entry) return refuse(StoreStatus::kBad);
    if (bytes() + entry->value.size() > kMaxStoreBytes) return refuse(StoreStatus::kLimit);
    formations_.enter(from, request, *entry, now, replies);
  }
  clear_ended();
}

/// Nothing is left of a formation that is over.
void StoreCore::clear_ended() {
  for (const auto& key : formations_.take_ended()) {
    const std::string prefix = key + kFormationKeys;
    erase(prefix);
    std::vector<WaitId> waiting;
    for (auto at = waiters_.lower_bound(prefix); at != waiters_.end() && at->first.starts_with(prefix); ++at)
      waiting.insert(waiting.end(), at->second.begin(), at->second.end());
    for (const auto& id : waiting) forget_wait(id);
  }
}

StoreCore::Replies StoreCore::on_request(Client client, int rank, const StoreRequest& request, Instant now) {
  Replies replies;
  StoreResponse response;
  switch (request.op) {
    case StoreOp::kSet:
      response = set(request, replies);
      break;
    case StoreOp::kFind: {
      auto found = find(client, request, now);
      if (!found) return replies;
      response = *std::move(found);
      break;
    }
    case StoreOp::kErase:
      response.amount = erase(request.key);
      break;
    case StoreOp::kEnter:
    case StoreOp::kMore:
    case StoreOp::kReady:
    case StoreOp::kFail:
      take_part(client, rank, request, now, replies);
      return replies;
    case StoreOp::kJoin:
      response = join(client, rank, request.value, replies);
      break;
    case StoreOp::kLeave:
      if (speaks(client, rank)) go(rank, false, replies);
      break;
  }
  response.id = request.id;
  replies.push_back({client, std::move(response)});
  return replies;
}

StoreCore::Replies StoreCore::give_up(const std::string& key, const std::string& why) {
  Replies replies;
  formations_.give_up(key, why, replies);
  clear_ended();
  return replies;
}

StoreCore::Replies StoreCore::on_gone(Client client) {
  Replies replies;
  const auto begin = waits_.lower_bound({client, 0}), end = waits_.upper_bound({client, UINT32_MAX});
  std::vector<WaitId> waiting;
  for (auto at = begin; at != end; ++at) waiting.push_back(at->first);
  for (const auto& id : waiting) forget_wait(id);
  for (const auto& [rank, member] : members_) {
    if (member.here && member.client == client) {
      go(rank, true, replies);
      break;
    }
  }
  return replies;
}

StoreCore::Replies StoreCore::on_time(Instant now, const std::string& hint) {
  Replies replies;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const WaitId id = deadlines_.begin()->second;
    forget_wait(id);
    replies.push_back({id.first, {id.second, StoreStatus::kAbsent}});
  }
  formations_.on_time(now, hint, replies);
  clear_ended();
  return replies;
}

std::optional<Instant> StoreCore::next_deadline() const {
  auto next = formations_.next_deadline();
  if (!deadlines_.empty()) next = std::min(next.value_or(Instant::max()), deadlines_.begin()->first);
  return next;
}

}  // namespace troupe::collectives
