#include "runtime/host/request_queue.hpp"

#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe {

RequestQueue::Request RequestQueue::request_of(const wire::Control& message) {
  if (const auto* spawn = std::get_if<wire::SpawnAsk>(&message)) {
    return {Kind::kSpawn, spawn->spec.payload.size()};
  }
  if (std::holds_alternative<wire::KillAsk>(message)) return {Kind::kKill};
  const auto* group = std::get_if<wire::GroupAsk>(&message);
  if (group != nullptr && group->verb == cluster::GroupVerb::kAwait) return {Kind::kAwait};
  const bool here =
      std::holds_alternative<wire::RingAsk>(message) || std::holds_alternative<wire::RegionAsk>(message);
  return {here ? Kind::kNode : Kind::kHead};
}

bool RequestQueue::has_room(const Lane& lane, const Request& next) {
  if (next.kind == Kind::kKill) return lane.under_way < kKills;
  return lane.under_way < kUnderWay && lane.under_way + lane.parked < kSpawns &&
         (lane.bytes == 0 || lane.bytes + next.bytes <= kSpawnBytes);
}

void RequestQueue::ask(std::uint64_t number, wire::Control message, Messages& out) {
  const Request request = request_of(message);
  Lane& its = lane(request.kind);
  if (its.waiting.empty() && has_room(its, request)) {
    send(number, request, std::move(message), out);
  } else {
    its.waiting.emplace(number, Waiting{request, std::move(message)});
  }
}

void RequestQueue::send(std::uint64_t number, Request request, wire::Control message, Messages& out) {
  const bool is_new = sent_.emplace(number, request).second;
  TROUPE_ASSERT(is_new, "a request goes once");
  Lane& its = lane(request.kind);
  ++its.under_way;
  its.bytes += request.bytes;
  out.push_back(std::move(message));
}

void RequestQueue::waits(std::uint64_t number, Messages& out) {
  const auto at = sent_.find(number);
  if (at == sent_.end()) return;
  const Kind kind = at->second.kind;
  const bool may_wait = kind == Kind::kSpawn || kind == Kind::kAwait;
  if (!may_wait || std::exchange(at->second.waits, true)) return;
  Lane& its = lane(kind);
  --its.under_way;
  ++its.parked;
  advance(its, out);
}

void RequestQueue::answered(std::uint64_t number, Messages& out) {
  finish(number, out);
}

void RequestQueue::cancel(std::uint64_t number, Messages& out) {
  for (Lane& its : lanes_) {
    if (its.waiting.erase(number) != 0) return advance(its, out);
  }
  out.emplace_back(wire::SpawnCancel{number});  // also of one whose answer was here first
  finish(number, out);
}

void RequestQueue::finish(std::uint64_t number, Messages& out) {
  const auto at = sent_.find(number);
  if (at == sent_.end()) return;
  Lane& its = lane(at->second.kind);
  --(at->second.waits ? its.parked : its.under_way);
  its.bytes -= at->second.bytes;
  sent_.erase(at);
  advance(its, out);
}

void RequestQueue::advance(Lane& lane, Messages& out) {
  while (!lane.waiting.empty() && has_room(lane, lane.waiting.begin()->second.request)) {
    auto next = lane.waiting.extract(lane.waiting.begin());
    send(next.key(), next.mapped().request, std::move(next.mapped().message), out);
  }
}

void RequestQueue::clear() {
  lanes_ = {};
  sent_.clear();
}

}  // namespace troupe
