#include "runtime/host/leases.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

void Leases::with_process(NodeId on, OnProcess then) {
  if (!on) return choose_home(std::move(then));
  std::unique_lock lock(mutex_);
  Lease& lease = leases_[on];
  if (lease.known) {
    const ProcessAddress process = lease.process;
    lock.unlock();
    return then(process);
  }
  const bool first = lease.waiting.empty();
  lease.waiting.push_back(std::move(then));
  lock.unlock();
  if (first) ask(on);
}

void Leases::ask(NodeId on) {
  const auto asked = node_.ask(
      [&](std::uint64_t request) {
        const bool own = config_.driver == ProcessAddress{};
        return wire::LeaseAsk{request, on, config_.package,
                              own ? ProcessAddress{config_.node, config_.process} : config_.driver};
      },
      nullptr);
  asked.state->on_ready([this, on, state = asked.state] {
    Result<ProcessAddress> process = ErrorInfo{};
    if (!state->outcome().ok()) {
      process = state->outcome().error();
    } else if (auto answer = wire::decode<wire::LeaseAnswer>(*state->outcome())) {
      process = answer->process;
    } else {
      process = answer.error();
    }
    std::vector<OnProcess> waiting;
    {
      const std::lock_guard lock(mutex_);
      Lease& lease = leases_[on];
      waiting.swap(lease.waiting);
      lease.known = process.ok();
      if (process) lease.process = *process;
    }
    for (const auto& one : waiting) one(process);
  });
}

void Leases::choose_home(OnProcess then) {
  std::unique_lock lock(mutex_);
  if (!homes_.empty()) {
    const NodeId home = homes_[next_home_++ % homes_.size()];
    lock.unlock();
    return with_process(home, std::move(then));
  }
  const bool first = homeless_.empty();
  homeless_.push_back(std::move(then));
  lock.unlock();
  if (!first) return;
  const auto asked = node_.ask([](std::uint64_t request) { return wire::NodesAsk{request}; }, nullptr);
  asked.state->on_ready([this, state = asked.state] { home_known(state->outcome()); });
}

void Leases::home_known(const Outcome& answered) {
  std::vector<NodeId> homes;
  ErrorInfo why{ErrorCode::kUnavailable, "cannot spawn a light actor", "no node of the cluster runs actors",
                "start one: troupe start --address HOST:PORT"};
  if (!answered.ok()) {
    why = answered.error();
  } else if (const auto nodes = wire::decode<wire::NodesAnswer>(*answered)) {
    for (const auto& node : nodes->nodes) {
      if (!node.gateway) homes.push_back(node.id);
    }
    const bool own = std::find(homes.begin(), homes.end(), config_.node) != homes.end();
    if (own) homes = {config_.node};
  } else {
    why = nodes.error();
  }
  std::vector<OnProcess> waiting;
  {
    const std::lock_guard lock(mutex_);
    homes_ = homes;
    waiting.swap(homeless_);
  }
  for (auto& one : waiting) {
    if (homes.empty()) {
      one(why);
    } else {
      with_process({}, std::move(one));
    }
  }
}

void Leases::process_down(ProcessAddress process) {
  const std::lock_guard lock(mutex_);
  const auto at = leases_.find(process.node);
  if (at != leases_.end() && at->second.known && at->second.process == process) leases_.erase(at);
}

void Leases::node_lost(NodeId node) {
  const std::lock_guard lock(mutex_);
  if (const auto at = leases_.find(node); at != leases_.end() && at->second.known) leases_.erase(at);
}

void Leases::node_down(NodeId node) {
  node_lost(node);
  const std::lock_guard lock(mutex_);
  std::erase(homes_, node);
}

}  // namespace troupe
