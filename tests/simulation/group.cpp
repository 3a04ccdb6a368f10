#include "tests/simulation/group.hpp"

#include <cstring>

#include "runtime/core/futex.hpp"
#include "runtime/core/thread.hpp"
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {
namespace {

using collectives::DType;
using collectives::Op;
using collectives::OpKind;
using collectives::Work;

/// Done where it is waited for.
class Lazy final : public Work {
 public:
  explicit Lazy(std::function<void()> finish) : finish_(std::move(finish)) {}

 private:
  bool advance(Duration /*limit*/) override {
    finish_();
    return true;
  }
  const std::function<void()> finish_;
};

wire::Bytes bytes_of(const Op& op) {
  return {op.in(), op.in() + op.bytes()};
}

template <class T>
void sum_into(const Op& op, const std::vector<wire::Bytes>& all) {
  auto* out = reinterpret_cast<T*>(op.out());
  std::fill(out, out + op.count, T{});
  for (const wire::Bytes& one : all) {
    for (std::size_t i = 0; i < op.count; ++i) {
      T value;
      std::memcpy(&value, one.data() + i * sizeof(T), sizeof(T));
      out[i] = static_cast<T>(out[i] + value);
    }
  }
}

}  // namespace

Group::Group(Cluster& in, const train::GenerationPlan& with) : cluster(in), plan(with) {
  for (std::size_t r = 0; r < with.members.size(); ++r) ranks.emplace_back();
}

void Group::wake(int rank) {
  ++ranks[rank].changes;
  futex_wake(ranks[rank].changes, 1);
}

bool Group::reaches(int from, int to) const {
  const Trainer* one = ranks[from].trainer;
  const Trainer* other = ranks[to].trainer;
  return one != nullptr && other != nullptr && cluster.world.reachable(one->host, other->host);
}

void Group::await(int rank, Duration timeout, const char* what, const std::function<bool()>& ready) {
  const MonotonicClock clock;
  const Instant deadline = clock.now() + timeout;
  Rank& me = ranks[rank];
  for (bool taken = false;;) {
    if (!me.aborted.empty())
      throw CollectiveAborted({ErrorCode::kAborted, std::string(what) + " was aborted", me.aborted, ""});
    if (ready()) {
      if (std::exchange(taken, true)) return;
      sleep_for(cluster.world.between(microseconds(20), milliseconds(2)));
      continue;
    }
    const Instant now = clock.now();
    if (now >= deadline)
      throw Timeout({ErrorCode::kTimeout, std::string(what) + " timed out", "not every rank came", ""});
    futex_wait(me.changes, me.changes, std::min<Duration>(deadline - now, milliseconds(100)));
  }
}

void Group::join(int rank, Trainer& trainer, Duration timeout, const std::function<bool()>& abandoned) {
  ranks[rank].trainer = &trainer;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) wake(r);
  await(rank, timeout, "forming", [&] {
    if (abandoned())
      throw CollectiveAborted({ErrorCode::kAborted, "forming was given up", "another generation", ""});
    for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
      if (!reaches(r, rank)) return false;
    }
    return true;
  });
}

void Group::give(int rank, std::uint64_t number, const char* what, wire::Bytes bytes) {
  Round& round = rounds_[number];
  if (round.bytes.empty()) {
    round.what = what;
    round.bytes.resize(ranks.size());
  }
  if (round.what != what)
    cluster.world.violation("ranks of one group are at " + round.what + " and at " + what);
  round.bytes[rank] = std::move(bytes);
  if (++round.given < static_cast<int>(ranks.size())) return;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) wake(r);
}

const std::vector<wire::Bytes>& Group::exchange(int rank, std::uint64_t number, Duration timeout) {
  Round& round = rounds_[number];
  await(rank, timeout, "a collective", [&] {
    if (round.given < static_cast<int>(ranks.size())) return false;
    for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
      if (!reaches(r, rank)) return false;
    }
    return true;
  });
  return round.bytes;
}

void Group::send(int from, int to, wire::ByteView bytes) {
  ranks[to].mail[from].emplace_back(bytes.begin(), bytes.end());
  wake(to);
}

wire::Bytes Group::receive(int rank, int from, Duration timeout) {
  auto& mail = ranks[rank].mail[from];
  await(rank, timeout, "a receive",
        [&] { return !mail.empty() && reaches(from, rank) && !ranks[from].trainer->stopped; });
  wire::Bytes bytes = std::move(mail.front());
  mail.pop_front();
  if (!std::exchange(ranks[rank].received, true)) ++cluster.transfers;
  return bytes;
}

void Group::abort(int host, const std::string& reason) {
  cluster.world.trace("group " + to_string(plan.generation), "aborted: " + reason);
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    Trainer* trainer = ranks[r].trainer;
    if (trainer == nullptr) {
      ranks[r].aborted = reason;  // seen when it joins
      continue;
    }
    if (trainer->host != host && !cluster.world.reachable(host, trainer->host)) continue;
    const Duration delay = trainer->host == host ? cluster.world.between(microseconds(1), milliseconds(1))
                                                 : cluster.world.between(microseconds(100), milliseconds(5));
    cluster.world.after(*trainer, delay, "abort word",
                        [this, self = cluster.groups.at(plan.generation), r, reason] {
                          if (ranks[r].aborted.empty()) ranks[r].aborted = reason;
                          wake(r);
                        });
  }
}

SimGroup::SimGroup(std::shared_ptr<Group> group, int rank, Duration timeout, SharedMemory region)
    : ProcessGroup({"simulated",
                    rank,
                    static_cast<int>(group->ranks.size()),
                    group->plan.generation,
                    collectives::checked_leaves("simulated", rank, static_cast<int>(group->ranks.size()), {}),
                    {}}),
      group_(std::move(group)),
      timeout_(timeout),
      region_(std::move(region)) {}

std::shared_ptr<Work> SimGroup::launch(std::span<const Op> operations) {
  std::vector<std::shared_ptr<Work>> works;
  for (const Op& op : operations) works.push_back(launch(op));
  return collectives::joined(std::move(works));
}

std::shared_ptr<Work> SimGroup::launch(const Op& op) {
  if (!abort_reason().empty())
    throw CollectiveAborted({ErrorCode::kAborted, "an operation was aborted", abort_reason(), ""});
  switch (op.kind) {
    case OpKind::kBarrier:
    case OpKind::kAllReduce: {
      const std::uint64_t number = ++operations_;
      group_->give(rank(), number, collectives::name_of(op.kind).data(), bytes_of(op));
      return std::make_shared<Lazy>([this, keep = group_, op, number] {
        const auto& all = keep->exchange(rank(), number, timeout_);
        if (op.kind == OpKind::kBarrier) return;
        const bool words = op.dtype == DType::kInt64;
        TROUPE_ASSERT(words || op.dtype == DType::kUInt8,
                      "what trainers reduce by themselves is of two types");
        words ? sum_into<std::int64_t>(op, all) : sum_into<std::uint8_t>(op, all);
      });
    }
    case OpKind::kSend:
      group_->send(rank(), op.peer, bytes_of(op));
      return collectives::completed_work();
    case OpKind::kRecv:
      return std::make_shared<Lazy>([this, op] {
        const auto bytes = group_->receive(rank(), op.peer, timeout_);
        TROUPE_ASSERT(bytes.size() == op.bytes(), "both sides count alike");
        std::memcpy(op.out(), bytes.data(), bytes.size());
      });
    default:
      refuse(collectives::name_of(op.kind));
  }
}

std::vector<wire::Bytes> SimGroup::exchange(const char* what, wire::Bytes bytes) {
  const std::uint64_t number = ++operations_;
  group_->give(rank(), number, what, std::move(bytes));
  return group_->exchange(rank(), number, timeout_);
}

void SimGroup::stop(const std::string& reason) {
  group_->abort(group_->ranks[rank()].trainer->host, reason);
}

}  // namespace troupe::sim
