#include "actors/train/trainer/shard_copies.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <fstream>
#include <utility>

#include "actors/train/trainer/fetch_snapshot.hpp"
#include "actors/train/trainer/trainer.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

constexpr std::size_t kWindow = std::size_t{512} << 10;
constexpr std::size_t kAskedAhead = 2;  ///< pieces: one is read while the other is on its way

checkpoint::Digest128 digest_of_shard(std::span<const std::byte> bytes) {
  checkpoint::Xxh3 hash;
  hash.update(bytes);
  return hash.digest();
}

}  // namespace

void KeptShards::keep(const ShardsOf& of, std::unique_ptr<StateCopy> copy) {
  std::shared_ptr<StateCopy> before = std::move(copy);  // its end takes a moment
  const std::lock_guard lock(mutex_);
  std::swap(copy_, before);
  of_ = of;
}

SharedPiece KeptShards::read(const ShardsOf& of, std::uint64_t offset, std::uint64_t bytes) const {
  std::shared_ptr<StateCopy> copy;
  {
    const std::lock_guard lock(mutex_);
    if (of == of_) copy = copy_;
  }
  if (copy == nullptr)
    throw_error({ErrorCode::kUnavailable,
                 "the shards of step " + std::to_string(of.step) + " are not kept any more",
                 "their trainer went on without that checkpoint", ""});
  SharedPiece piece;
  const std::uint64_t left = copy->size() - std::min(offset, copy->size());
  piece.bytes.resize(static_cast<std::size_t>(std::min({bytes, left, std::uint64_t{kSharedPiece}})));
  copy->read(offset, piece.bytes);
  piece.digest = digest_of_shard(piece.bytes);
  return piece;
}

void KeptShards::drop(const ShardsOf& of) {
  std::shared_ptr<StateCopy> dropped;
  const std::lock_guard lock(mutex_);
  if (of == of_) dropped = std::move(copy_);
}

void KeptShards::drop() {
  std::shared_ptr<StateCopy> dropped;
  const std::lock_guard lock(mutex_);
  dropped = std::move(copy_);
}

ShardReader::ShardReader(const ShardsOf& of, std::unique_ptr<StateCopy> mine,
                         std::vector<ActorHandle<Trainer>> trainers, std::function<void()> look)
    : of_(of),
      mine_(std::move(mine)),
      trainers_(std::move(trainers)),
      look_(std::move(look)),
      windows_(trainers_.size()) {}

ShardReader::~ShardReader() {
  for (std::size_t rank = 1; rank < trainers_.size(); ++rank) {
    try {
      trainers_[rank].tell<&Trainer::drop_shards>(of_);
    } catch (const Error&) {  // it goes with the next checkpoint, or generation
    }
  }
}

void ShardReader::read(std::size_t rank, std::uint64_t offset, std::span<std::byte> into) {
  if (rank == 0) return mine_->read(offset, into);
  const auto ask = [&](std::uint64_t at, std::uint64_t bytes) {
    return trainers_[rank].call<&Trainer::shards>(of_, at, bytes);
  };
  if (into.size() < kWindow) {
    Window& window = windows_[rank];
    const bool has = offset >= window.begin && offset + into.size() <= window.begin + window.bytes.size();
    if (!has) window = {offset, take(rank, ask(offset, kWindow), into.size()).bytes};
    std::memcpy(into.data(), window.bytes.data() + (offset - window.begin), into.size());
    return;
  }
  std::deque<std::pair<Future<SharedPiece>, std::span<std::byte>>> asked;
  while (!into.empty() || !asked.empty()) {
    while (!into.empty() && asked.size() < kAskedAhead) {
      const auto piece = into.first(std::min(into.size(), kSharedPiece));
      asked.emplace_back(ask(offset, piece.size()), piece);
      into = into.subspan(piece.size());
      offset += piece.size();
    }
    const auto [future, to] = asked.front();
    const SharedPiece came = take(rank, future, to.size());
    std::memcpy(to.data(), came.bytes.data(), to.size());
    asked.pop_front();
  }
}

SharedPiece ShardReader::take(std::size_t rank, const Future<SharedPiece>& asked, std::size_t least) const {
  SharedPiece came = await(asked, look_);
  if (came.bytes.size() < least || digest_of_shard(came.bytes) != came.digest)
    throw_error({ErrorCode::kCorrupt, "a shard that arrives is not what was sent",
                 "the hash of a piece of rank " + std::to_string(rank) + " does not hold", ""});
  return came;
}

int members_of(const GenerationPlan& plan, NodeId node) {
  return static_cast<int>(std::count_if(plan.members.begin(), plan.members.end(),
                                        [&](const Member& one) { return one.node == node; }));
}

std::vector<ActorHandle<Trainer>> all_copied(bool copied, collectives::ProcessGroup& group,
                                             const GenerationPlan& plan, ActorContext& actor) {
  const ActorAddress me = actor.address();
  const std::array<std::int64_t, 3> mine{copied ? 1 : 0, std::bit_cast<std::int64_t>(me.node.value),
                                         std::bit_cast<std::int64_t>(me.process.value)};
  std::vector<std::int64_t> all(mine.size() * plan.members.size());
  group.all_gather(std::span(mine), std::span(all))->wait();
  std::vector<ActorHandle<Trainer>> trainers;
  for (std::size_t rank = 0; rank < plan.members.size(); ++rank) {
    const std::int64_t* said = &all[rank * mine.size()];
    if (said[0] == 0) return {};
    const ActorAddress at{NodeId{std::bit_cast<std::uint64_t>(said[1])},
                          ProcessId{std::bit_cast<std::uint64_t>(said[2])}, plan.members[rank].actor};
    trainers.emplace_back(&actor.process(), at);
  }
  return trainers;
}

ProcessMemory own_process_memory() {
  constexpr std::uint64_t kKib = 1024;
  ProcessMemory own;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:" && status >> own.most) own.most *= kKib;
    if (word == "VmRSS:" && status >> own.now) own.now *= kKib;
  }
  return own;
}

std::string why_no_room(std::uint64_t bytes, int here, const ProcessMemory& own,
                        std::optional<std::uint64_t> available) {
  constexpr std::uint64_t kMib = std::uint64_t{1} << 20;
  const std::uint64_t needed = bytes + (own.most - std::min(own.most, own.now));
  if (!available || needed <= *available / static_cast<std::uint64_t>(std::max(here, 1))) return "";
  return "a copy of its shards and a step take " + std::to_string(needed / kMib) + " MiB more in each of " +
         std::to_string(here) + " trainers, and their host or its limits have " +
         std::to_string(*available / kMib) + " MiB";
}

}  // namespace troupe::train
