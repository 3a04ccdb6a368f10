#include "collectives/rendezvous/store_core.hpp"

#include <charconv>

#include "runtime/core/assert.hpp"

namespace troupe::collectives {

bool StoreCore::fits(const std::string& key, std::size_t value_bytes) const {
  const auto found = values_.find(key);
  const std::size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  return bytes_ - before + key.size() + value_bytes <= kMaxStoreBytes;
}

void StoreCore::put(const std::string& key, std::string value, Replies& replies) {
  auto [at, fresh] = values_.try_emplace(key);
  if (fresh) bytes_ += key.size();
  bytes_ = bytes_ - at->second.size() + value.size();
  at->second = std::move(value);
  const auto waiting = waiters_.find(key);
  if (waiting == waiters_.end()) return;
  for (const Client client : std::vector<Client>(waiting->second)) {
    forget_wait(client);
    replies.push_back({client, {StoreStatus::kOk, 0, at->second}});
  }
}

void StoreCore::forget_wait(Client client) {
  const auto wait = waits_.find(client);
  if (wait == waits_.end()) return;
  deadlines_.erase({wait->second.deadline, client});
  auto& clients = waiters_[wait->second.key];
  std::erase(clients, client);
  if (clients.empty()) waiters_.erase(wait->second.key);
  waits_.erase(wait);
}

StoreResponse StoreCore::add(const StoreRequest& request, Replies& replies) {
  std::int64_t before = 0;
  if (const auto found = values_.find(request.key); found != values_.end()) {
    const char* end = found->second.data() + found->second.size();
    const auto [at, error] = std::from_chars(found->second.data(), end, before);
    if (error != std::errc{} || at != end) return {StoreStatus::kBad};
  }
  // As unsigned: a sum that does not fit wraps around.
  const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(before) +
                                             static_cast<std::uint64_t>(request.amount));
  std::string text = std::to_string(sum);
  if (!fits(request.key, text.size())) return {StoreStatus::kLimit};
  put(request.key, std::move(text), replies);
  return {StoreStatus::kOk, sum};
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

StoreResponse StoreCore::join(Client client, int rank, const std::string& who) {
  const auto [at, fresh] = members_.try_emplace(rank, Member{client, true, who});
  if (!fresh) return {at->second.here ? StoreStatus::kTaken : StoreStatus::kOver, 0, at->second.who};
  ++present_;
  return {StoreStatus::kOk};
}

void StoreCore::go(int rank, const char* how, Replies& replies) {
  Member& member = members_.at(rank);
  member.here = false;
  --present_;
  put("event/" + std::to_string(events_++), how + std::to_string(rank) + " " + member.who, replies);
}

StoreCore::Replies StoreCore::on_request(Client client, int rank, const StoreRequest& request, Instant now) {
  TROUPE_ASSERT(!waiting(client), "one request at a time");
  Replies replies;
  StoreResponse response;
  const auto found = values_.find(request.key);
  const bool is_set = found != values_.end();
  switch (request.op) {
    case StoreOp::kSetOnce:
    case StoreOp::kSet:
      if (request.op == StoreOp::kSetOnce && is_set) {
        response.value = found->second;
      } else if (!fits(request.key, request.value.size())) {
        response.status = StoreStatus::kLimit;
      } else {
        put(request.key, request.value, replies);
        if (request.op == StoreOp::kSetOnce) response.value = request.value;
      }
      break;
    case StoreOp::kFind:
      if (!is_set && request.wait_ms > 0) {
        const Instant deadline = now + std::chrono::milliseconds(request.wait_ms);
        waits_[client] = {request.key, deadline};
        waiters_[request.key].push_back(client);
        deadlines_.insert({deadline, client});
        return replies;
      }
      response.status = is_set ? StoreStatus::kOk : StoreStatus::kAbsent;
      if (is_set) response.value = found->second;
      break;
    case StoreOp::kAdd:
      response = add(request, replies);
      break;
    case StoreOp::kErase:
      response.amount = erase(request.key);
      break;
    case StoreOp::kJoin:
      response = join(client, rank, request.value);
      break;
    case StoreOp::kLeave:
      if (const auto member = members_.find(rank);
          member != members_.end() && member->second.here && member->second.client == client) {
        go(rank, "left ", replies);
      }
      break;
  }
  replies.push_back({client, std::move(response)});
  return replies;
}

StoreCore::Replies StoreCore::set_once(const std::string& key, const std::string& value) {
  Replies replies;
  if (!values_.contains(key) && fits(key, value.size())) put(key, value, replies);
  return replies;
}

StoreCore::Replies StoreCore::on_gone(Client client) {
  Replies replies;
  forget_wait(client);
  for (const auto& [rank, member] : members_) {
    if (member.here && member.client == client) {
      go(rank, "lost ", replies);
      break;
    }
  }
  return replies;
}

StoreCore::Replies StoreCore::on_time(Instant now) {
  Replies replies;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const Client client = deadlines_.begin()->second;
    forget_wait(client);
    replies.push_back({client, {StoreStatus::kAbsent}});
  }
  return replies;
}

std::optional<Instant> StoreCore::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

}  // namespace troupe::collectives
