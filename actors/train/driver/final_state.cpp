#include "actors/train/driver/final_state.hpp"

#include <algorithm>
#include <map>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/engine/held_shards.hpp"

namespace troupe::train {
namespace {

/// For a piece of the state: the first one is laid out when it is asked for.
constexpr Duration kPieceArrives = std::chrono::seconds(60);
constexpr int kPieceTries = 3;

void lose(Promise<wire::Bytes>& piece, const std::string& why) {
  piece.fail({ErrorCode::kUnavailable, "the job's state is lost", why, "take its newest checkpoint"});
}

}  // namespace

Result<void> check_parts(wire::ByteView file, const std::vector<PartHash>& parts) {
  const auto decoded = checkpoint::read_safetensors("the state that came from a trainer", file);
  if (!decoded) return decoded.error();
  std::map<std::string, checkpoint::Digest128> said;
  for (const PartHash& part : parts) said[part.name] = part.digest;
  for (const PartHash& part : hash_parts(decoded->tensors)) {
    if (const auto at = said.find(part.name); at != said.end() && at->second == part.digest) continue;
    return ErrorInfo{ErrorCode::kCorrupt, "the state that came from a trainer is not the job's",
                     "'" + part.name + "' has other bytes than the trainers said at the end", ""};
  }
  return {};
}

namespace {

/// All of it, or of a shard.
wire::Bytes take_pieces(const ActorHandle<TrainDriver>& driver, bool weights_only, int shard,
                        const std::function<bool()>& goes_on) {
  wire::Bytes all;
  for (int failures = 0;;) {
    try {
      const auto piece =
          driver.call<&TrainDriver::final_state>(weights_only, shard, all.size()).get(kPieceArrives);
      if (piece.empty()) return all;
      all.insert(all.end(), piece.begin(), piece.end());
    } catch (const Error&) {
      if (++failures == kPieceTries || !goes_on()) throw;
    }
  }
}

}  // namespace

wire::Bytes take_final_state(const ActorHandle<TrainDriver>& driver, bool weights_only,
                             const std::function<bool()>& goes_on) {
  const int shards = driver.call<&TrainDriver::final_shards>().get(kPieceArrives);
  wire::Bytes all;
  if (shards == 0) all = take_pieces(driver, weights_only, 0, goes_on);
  if (shards > 0) {
    JoinedShards joined;
    for (int shard = 0; shard < shards; ++shard)
      joined.add(take_pieces(driver, weights_only, shard, goes_on)).value();
    all = joined.finish().value();
  }
  const auto parts = driver.call<&TrainDriver::final_parts>().get(kPieceArrives);
  if (!parts.empty()) check_parts(all, parts).value();  // where a job only holds nobody hashes them
  return all;
}

// The driver's side.

int TrainDriver::final_shards() const {
  return end_state_.in_shards ? static_cast<int>(end_state_.holders.size()) : 0;
}

Future<wire::Bytes> TrainDriver::final_state(bool weights_only, int shard, std::uint64_t offset) {
  Promise<wire::Bytes> piece;
  if (end_state_.in_shards) {
    ask_for_shard(weights_only, shard, offset, piece);
    return piece.future();
  }
  // Whoever has not answered by now holds it in vain.
  if (asked_) std::erase(end_state_.holders, *std::exchange(asked_, std::nullopt));
  ask_holder(weights_only, offset, piece, "no trainer is left that has it");
  return piece.future();
}

void TrainDriver::ask_for_shard(bool weights_only, int shard, std::uint64_t offset,
                                Promise<wire::Bytes> piece) {
  const auto number = static_cast<std::size_t>(shard);
  if (number >= end_state_.holders.size()) return lose(piece, "it has no such shard");
  const ActorId holder = end_state_.holders[number];
  const auto seat = trainers_.find(holder);
  if (seat == trainers_.end()) return lose(piece, names_[holder] + " is gone, and its shards with it");
  seat->second.handle.call<&Trainer::final_state>(HeldWish{weights_only, true}, offset)
      .then([this, piece, holder](Result<HeldPiece> held) mutable {
        if (!held) return lose(piece, names_[holder] + ": " + held.error().message());
        if (held->steps != end_state_.steps || held->lineage != end_state_.lineage)
          return lose(piece, text_of_other_state(holder, *held));
        piece.set(std::move(held->bytes));
      });
}

std::string TrainDriver::text_of_other_state(ActorId holder, const HeldPiece& held) {
  return names_[holder] + " holds " + std::to_string(held.steps) + " steps, the job has " +
         std::to_string(end_state_.steps);
}

/// Asks one after the other until one of them holds what the job ended with. All hold the same bytes, so each
/// piece may be another one's.
void TrainDriver::ask_holder(bool weights_only, std::uint64_t offset, Promise<wire::Bytes> piece,
                             const std::string& why_none) {
  auto& holders = end_state_.holders;
  std::erase_if(holders, [this](ActorId holder) { return !trainers_.contains(holder); });
  if (holders.empty()) return lose(piece, why_none);
  const ActorId holder = holders.front();
  asked_ = holder;
  trainers_.at(holder)
      .handle.call<&Trainer::final_state>(HeldWish{weights_only, false}, offset)
      .then([this, weights_only, offset, piece, holder](Result<HeldPiece> held) mutable {
        if (asked_ == holder) asked_.reset();
        const bool same = held && held->steps == end_state_.steps && held->lineage == end_state_.lineage;
        if (same) return piece.set(std::move(held->bytes));
        std::erase(end_state_.holders, holder);
        ask_holder(weights_only, offset, std::move(piece),
                   held ? text_of_other_state(holder, *held) : held.error().message());
      });
}

std::vector<PartHash> TrainDriver::final_parts() const {
  return end_state_.parts;
}

JobPlace TrainDriver::place() {
  return {so_far_.steps, so_far_.state_hash,
          job_identity(options_.settings, *data_, first_hello_ ? first_hello_->numerics : ""), history_};
}

}  // namespace troupe::train
