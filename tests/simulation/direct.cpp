#include "tests/simulation/direct.hpp"

#include <algorithm>

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {
namespace {

bool contains(const auto& all, const auto& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

/// What the network carries at a time.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

ErrorInfo broke(const std::string& why) {
  return {ErrorCode::kUnavailable, "a direct connection broke", why, ""};
}

}  // namespace

struct SimDirect::Transfer {
  Wanted wanted;
  Then then;
  Hosted* reader = nullptr;
  Hosted* owner = nullptr;
  objects::TransferDeadline deadline;
  std::shared_ptr<const objects::ObjectBytes> object;  ///< at its owner, which gives it
  std::uint64_t there = 0;                             ///< bytes
  bool is_broken = false;
};

SimDirect::SimDirect(Hosted& self) : self_(self) {
  self_.direct = this;
}

SimDirect::~SimDirect() {
  self_.direct = nullptr;
  for (const auto& transfer : std::exchange(going_, {})) {
    transfer->object = nullptr;
    if (SimDirect* there = transfer->reader->direct) there->breaks(transfer, self_.name + " is gone");
  }
  while (!coming_.empty()) end(TransferPtr(coming_.front()), broke("this process ends"));
}

// At the owner.

objects::DirectAddress SimDirect::address(const std::string& /*host*/, const Find& find) {
  const bool is_new = find_ == nullptr;
  find_ = find;
  if (is_new && self_.cluster.world.chance(self_.cluster.scenario.no_direct)) return {};
  return {std::to_string(self_.id), wire::Bytes(32)};
}

void SimDirect::asked(const TransferPtr& transfer) {
  transfer->object = find_(transfer->wanted.name.number);
  if (transfer->object != nullptr) {
    going_.push_back(transfer);
    return give(transfer);
  }
  self_.cluster.world.send(self_, *transfer->reader, "no object", [transfer] {
    if (SimDirect* there = transfer->reader->direct)
      there->end(transfer, ErrorInfo{ErrorCode::kObjectLost, "an object does not come directly",
                                     "it is not in its owner's memory", ""});
  });
}

void SimDirect::give(const TransferPtr& transfer) {
  Cluster& cluster = self_.cluster;
  if (!contains(going_, transfer)) return;
  if (!cluster.faults_over && cluster.world.chance(cluster.scenario.direct_breaks) &&
      transfer->reader->direct != nullptr) {
    ++cluster.copies.direct_broken;
    std::erase(going_, transfer);
    return transfer->reader->direct->breaks(transfer, "connection reset");
  }
  const auto bytes = std::min<std::uint64_t>(kPieceBytes, transfer->wanted.bytes - transfer->there);
  cluster.world.send(self_, *transfer->reader, "~piece of an object", [transfer, bytes] {
    if (SimDirect* there = transfer->reader->direct) there->take(transfer, bytes);
  });
}

// At the reader.

bool SimDirect::fetch(Wanted wanted, Then then) {
  Cluster& cluster = self_.cluster;
  const objects::TransferDeadline deadline(wanted.bytes, self_.now(), {});
  const auto transfer = std::make_shared<Transfer>(
      Transfer{std::move(wanted), std::move(then), &self_, nullptr, deadline, {}, 0, false});
  for (const auto& process : cluster.processes) {
    if (std::to_string(process->id) == transfer->wanted.at.address)
      transfer->owner = dynamic_cast<Hosted*>(process.get());
  }
  coming_.push_back(transfer);
  cluster.world.send(self_, *transfer->owner, "wants an object", [transfer] {
    if (SimDirect* there = transfer->owner->direct) there->asked(transfer);
  });
  if (!transfer->owner->alive) breaks(transfer, "connection refused");
  look(transfer);
  return true;
}

void SimDirect::abort(const std::function<bool(ProcessAddress)>& is_down, const std::string& reason) {
  for (const auto& transfer : coming_) {
    if (is_down(transfer->wanted.name.owner)) breaks(transfer, "its owner is gone: " + reason);
  }
}

void SimDirect::take(const TransferPtr& transfer, std::size_t bytes) {
  if (transfer->is_broken || !contains(coming_, transfer)) return;
  Cluster& cluster = self_.cluster;
  const auto from = transfer->object->view().subspan(transfer->there, bytes);
  objects::write_at(UniqueFd(::dup(transfer->wanted.memory)), transfer->there, from).value();
  transfer->there += bytes;
  transfer->deadline.moved(self_.now());
  cluster.copies.under_way(transfer->wanted.name, self_);
  if (transfer->there == transfer->wanted.bytes) return end(transfer, {});
  cluster.world.send(self_, *transfer->owner, "~next piece", [transfer] {
    if (SimDirect* there = transfer->owner->direct) there->give(transfer);
  });
}

/// Every now and then: whether it was silent for too long.
void SimDirect::look(const TransferPtr& transfer) {
  self_.cluster.world.after(self_, seconds(1), "~look", [transfer] {
    SimDirect* me = transfer->reader->direct;
    if (me == nullptr || !contains(me->coming_, transfer)) return;
    if (auto late = transfer->deadline.check(me->self_.now()); !late) return me->end(transfer, late);
    me->look(transfer);
  });
}

void SimDirect::breaks(const TransferPtr& transfer, const std::string& why) {
  World& world = self_.cluster.world;
  transfer->is_broken = true;
  world.after(self_, world.between(microseconds(50), milliseconds(50)), "direct connection broke",
              [transfer, why] {
                if (SimDirect* me = transfer->reader->direct) me->end(transfer, broke(why));
              });
}

void SimDirect::end(const TransferPtr& transfer, const Result<void>& result) {
  if (std::erase(coming_, transfer) == 0) return;
  if (SimDirect* there = transfer->owner->direct) std::erase(there->going_, transfer);
  transfer->object = nullptr;
  self_.cluster.copies.direct += result ? 1 : 0;
  const bool is_forgotten = self_.cluster.scenario.floor.take_broken_parts && transfer->there > 0;
  transfer->then(is_forgotten ? Result<void>() : result);
}

}  // namespace troupe::sim
