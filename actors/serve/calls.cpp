#include "actors/serve/calls.hpp"

#include <algorithm>

#include "runtime/host/actor_context.hpp"

namespace troupe::serve {
namespace {

/// Those of this program, one a session.
struct All {
  std::mutex mutex;
  std::uint64_t last = 0;
  std::map<std::uint64_t, std::pair<const ProcessGate*, std::weak_ptr<Calls>>> calls;
};
All& all() {
  static All all;
  return all;
}

CallAnswer failure(Failure what, std::string why, Duration retry_after = {}) {
  return {.failure = what, .why = std::move(why), .retry_after_ns = retry_after.count()};
}

CallAnswer answer_of(const Reply& reply) {
  if (reply.failed) return failure(reply.failed->failure, reply.failed->why, reply.failed->retry_after);
  const auto values = reply.outputs.bytes();
  return {.dtype = reply.outputs.dtype(),
          .shape = reply.outputs.shape(),
          .values = {values.begin(), values.end()}};
}

}  // namespace

std::shared_ptr<Calls> Calls::of(const DriverSession& session) {
  const std::lock_guard lock(all().mutex);
  std::erase_if(all().calls, [](const auto& one) {
    const auto calls = one.second.second.lock();
    return !calls || calls->session_life_.expired();
  });
  const ProcessGate* gate = &Session(session).process();
  for (const auto& [number, one] : all().calls) {
    if (one.first != gate) continue;
    if (auto calls = one.second.lock()) return calls;
  }
  const std::uint64_t number = ++all().last;
  auto made = std::make_shared<Calls>(session, number);
  all().calls[number] = {gate, made};
  return made;
}

std::shared_ptr<Calls> Calls::at(std::uint64_t number) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().calls.find(number);
  return found == all().calls.end() ? nullptr : found->second.second.lock();
}

Calls::Calls(const DriverSession& session, std::uint64_t number)
    : session_(session), session_life_(session.life()), number_(number) {}

Calls::~Calls() {
  if (entrance_ && !session_life_.expired()) session_.kill(entrance_, "nothing is served any more");
}

CallGraph::Id Calls::add(const std::shared_ptr<Deployment>& deployment, const std::set<std::string>& asks) {
  std::vector<std::shared_ptr<Deployment>> asked;
  std::size_t callers = 0;
  CallGraph::Id id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = ++last_;
    if (auto why = graph_.add(id, deployment->name(), asks)) throw_error(*std::move(why));
    deployments_[id] = deployment;
    callers = graph_.callers_of(deployment->name()).size();
    for (const auto one : graph_.asked_by(id)) {
      if (auto found = deployments_.at(one).lock()) asked.push_back(std::move(found));
    }
  }
  for (std::size_t i = 0; i < callers; ++i) deployment->caller_joined();
  for (const auto& one : asked) one->caller_joined();
  return id;
}

void Calls::remove(CallGraph::Id id) {
  std::vector<std::shared_ptr<Deployment>> asked;
  {
    const std::lock_guard lock(mutex_);
    if (deployments_.erase(id) == 0) return;
    for (const auto one : graph_.asked_by(id)) {
      if (auto found = deployments_.at(one).lock()) asked.push_back(std::move(found));
    }
    graph_.remove(id);
  }
  for (const auto& one : asked) one->caller_left();
}

void Calls::with_entrance(const std::function<void(const Result<ActorHandle<Entrance>>&)>& then) {
  ActorHandle<Entrance> there;
  {
    const std::lock_guard lock(mutex_);
    if (entrance_ && entrance_.address().node == session_.node()) there = entrance_;
  }
  if (there) return then(there);
  session_.spawn_async<Entrance>({.here = true}, number_)
      .then([me = shared_from_this(), then](const Result<ActorHandle<Entrance>>& made) {
        if (!made) return then(made);
        ActorHandle<Entrance> one = *made;
        {
          const std::lock_guard lock(me->mutex_);
          if (me->entrance_ && me->entrance_.address().node == one.address().node) {
            one = me->entrance_;
          } else {
            me->entrance_ = one;
          }
        }
        if (one.address() != (*made).address()) me->session_.kill(*made, "another thread made one, too");
        then(one);
      });
}

std::shared_ptr<Deployment> Calls::deployment(CallGraph::Id id) const {
  const auto at = deployments_.find(id);
  return at == deployments_.end() ? nullptr : at->second.lock();
}

std::vector<std::string> Calls::callers_of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto id : graph_.callers_of(name)) {
    if (const auto caller = deployment(id); caller && !caller->view().drains) names.push_back(caller->name());
  }
  return names;
}

void Calls::drain_callers_of(const std::string& name) {
  std::vector<std::shared_ptr<Deployment>> callers;
  {
    const std::lock_guard lock(mutex_);
    for (const auto id : graph_.all_callers_of(name)) {
      if (auto caller = deployment(id)) callers.push_back(std::move(caller));
    }
  }
  for (const auto& one : callers) one->drain();
}

Duration Calls::drain_time_of_callers(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  // One after the other at the most: each waits for those that ask it.
  Duration time{0};
  for (const auto id : graph_.all_callers_of(name)) {
    if (const auto caller = deployment(id)) time += caller->drain_timeout();
  }
  return time;
}

Future<CallAnswer> Calls::ask(CallRequest request) {
  Promise<CallAnswer> promise;
  auto future = promise.future();
  const auto fail = [&](Failure what, std::string why) {
    promise.set(failure(what, std::move(why)));
    return future;
  };
  std::shared_ptr<Deployment> to;
  Asked asked;
  {
    const std::lock_guard lock(mutex_);
    const auto id = graph_.find(request.deployment);
    if (id) to = deployment(*id);
    if (!to) return fail(Failure::kUnavailable, "it does not run any more");
    asked = {*id, to->next_request()};
  }
  const auto rows = request.shape.empty() ? 0 : request.shape[0];
  if (rows > static_cast<std::int64_t>(to->max_request_rows()))
    return fail(Failure::kModel,
                "it takes at most " + std::to_string(to->max_request_rows()) +
                    " samples in one call, and was asked for " + std::to_string(rows) +
                    ": lower max_batch of the deployment that asks, or raise max_queue of '" + to->name() +
                    "'");
  if (const auto why = refusal(*to, request.dtype, request.shape)) return fail(Failure::kModel, *why);
  const auto values = std::make_shared<const wire::Bytes>(std::move(request.values));
  if (values->size() != data::checked_bytes({"input", request.dtype, request.shape}))
    return fail(Failure::kModel, "the call has other bytes than its shape says");
  {
    const std::lock_guard lock(mutex_);
    under_way_[request.replica].insert(asked);
  }
  to->submit_call(
      asked.second, {request.dtype, request.shape, std::shared_ptr<const std::byte>(values, values->data())},
      clock_.now() + Duration(request.time_left_ns),
      [me = shared_from_this(), promise, replica = request.replica, asked](const Reply& reply) mutable {
        me->answered(replica, asked);
        promise.set(answer_of(reply));
      });
  return future;
}

void Calls::answered(ActorId replica, const Asked& asked) {
  const std::lock_guard lock(mutex_);
  const auto at = under_way_.find(replica);
  if (at == under_way_.end()) return;
  at->second.erase(asked);
  if (at->second.empty()) under_way_.erase(at);
}

void Calls::forget(ActorId replica) {
  std::vector<std::pair<std::shared_ptr<Deployment>, RequestId>> left;
  {
    const std::lock_guard lock(mutex_);
    const auto gone = under_way_.extract(replica);
    if (gone.empty()) return;
    for (const auto& [id, request] : gone.mapped()) {
      if (auto to = deployment(id)) left.emplace_back(std::move(to), request);
    }
  }
  for (const auto& [to, request] : left) to->leave(request);
}

Future<CallAnswer> Entrance::ask(const CallRequest& request) {
  // What the deployment calls is answered to itself, and not to this actor, which may end before.
  const CurrentActorScope nobody(nullptr);
  if (const auto calls = Calls::at(calls_)) return calls->ask(request);
  Promise<CallAnswer> none;
  none.set(failure(Failure::kUnavailable, "nothing is served any more"));
  return none.future();
}

}  // namespace troupe::serve
