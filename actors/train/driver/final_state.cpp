#include "actors/train/driver/final_state.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/engine/held_shards.hpp"

namespace troupe::train {
namespace {

/// For a piece of the state.
constexpr Duration kPieceArrives = std::chrono::seconds(60);
constexpr int kPieceTries = 3;

void lose(Promise<FinalPiece>& piece, const std::string& why) {
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

/// Takes pieces of one state alone.
class OneState {
 public:
  explicit OneState(const AskForPiece& ask) : ask_(ask) {}
  /// All of it, or of a shard.
  wire::Bytes all_of(int shard) {
    wire::Bytes all;
    for (;;) {
      const FinalPiece piece = ask_(shard, all.size());
      if (state_.value_or(piece.state) != piece.state)
        throw_error({ErrorCode::kUnavailable, "the job's state did not come back whole",
                     "the job has come to another state since the first piece of it was taken",
                     "take it again"});
      state_ = piece.state;
      shards_ = piece.shards;
      if (piece.bytes.empty()) return all;
      all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
    }
  }
  int shards() const { return shards_; }

 private:
  const AskForPiece& ask_;
  std::optional<std::uint64_t> state_;
  int shards_ = 0;
};

}  // namespace

wire::Bytes join_pieces(const AskForPiece& ask) {
  OneState pieces(ask);
  wire::Bytes first = pieces.all_of(0);
  if (pieces.shards() == 0) return first;
  JoinedShards joined;
  joined.add(first).value();
  first = {};
  for (int shard = 1; shard < pieces.shards(); ++shard) joined.add(pieces.all_of(shard)).value();
  return joined.finish().value();
}

wire::Bytes take_final_state(const ActorHandle<TrainDriver>& driver, bool weights_only,
                             const std::function<bool()>& goes_on) {
  int failures = 0;
  const wire::Bytes all = join_pieces([&](int shard, std::uint64_t offset) {
    for (;;) {
      try {
        return driver.call<&TrainDriver::final_state>(weights_only, shard, offset).get(kPieceArrives);
      } catch (const Error&) {
        if (++failures == kPieceTries || !goes_on()) throw;
      }
    }
  });
  const auto parts = driver.call<&TrainDriver::final_parts>().get(kPieceArrives);
  if (!parts.empty()) check_parts(all, parts).value();  // where a job only holds nobody hashes them
  return all;
}

// The driver's side.

void TrainDriver::set_end_state(const EndState& state) {
  end_state_ = state;
  ++end_states_;
}

Future<FinalPiece> TrainDriver::final_state(bool weights_only, int shard, std::uint64_t offset) {
  Promise<FinalPiece> piece;
  if (end_state_.in_shards) {
    ask_for_shard(weights_only, shard, offset, piece);
    return piece.future();
  }
  // Whoever has not answered by now holds it in vain.
  if (asked_) std::erase(end_state_.holders, *std::exchange(asked_, std::nullopt));
  ask_holder(weights_only, offset, piece, end_states_, "no trainer is left that has it");
  return piece.future();
}

void TrainDriver::ask_for_shard(bool weights_only, int shard, std::uint64_t offset,
                                Promise<FinalPiece> piece) {
  const auto& holders = end_state_.holders;
  // With a sharded optimizer each trainer has all weights: any of them gives these.
  const bool each_has_it = weights_only && !has_units(options_.settings.sharding.what);
  auto number = static_cast<std::size_t>(shard);
  while (each_has_it && number + 1 < holders.size() && !trainers_.contains(holders[number])) ++number;
  if (number >= holders.size()) return lose(piece, "it has no such shard");
  const std::size_t shards = each_has_it ? 0 : holders.size();
  const ActorId holder = holders[number];
  const auto seat = trainers_.find(holder);
  if (seat == trainers_.end()) return lose(piece, names_[holder] + " is gone, and its shards with it");
  seat->second.handle.call<&Trainer::final_state>(HeldWish{weights_only, !each_has_it}, offset)
      .then([this, piece, holder, shards, state = end_states_](Result<HeldPiece> held) mutable {
        if (!held) return lose(piece, names_[holder] + ": " + held.error().message());
        if (const auto why = why_not_of(state, holder, *held); !why.empty()) return lose(piece, why);
        piece.set(FinalPiece{state, static_cast<int>(shards), std::move(held->bytes)});
      });
}

/// Why that piece is none of the state of this number; empty: it is.
std::string TrainDriver::why_not_of(std::uint64_t state, ActorId holder, const HeldPiece& held) {
  if (state != end_states_) return "the job has come to another state";
  if (held.steps == end_state_.steps && held.lineage == end_state_.lineage) return "";
  return names_[holder] + " holds " + std::to_string(held.steps) + " steps of generation " +
         to_string(held.lineage) + ", the job has " + std::to_string(end_state_.steps) + " of " +
         to_string(end_state_.lineage);
}

/// Asks one after the other until one of them holds what the job ended with. All hold the same bytes, so each
/// piece may be another one's.
void TrainDriver::ask_holder(bool weights_only, std::uint64_t offset, Promise<FinalPiece> piece,
                             std::uint64_t state, const std::string& why_none) {
  if (state != end_states_) return lose(piece, "the job has come to another state");
  auto& holders = end_state_.holders;
  std::erase_if(holders, [this](ActorId holder) { return !trainers_.contains(holder); });
  if (holders.empty()) return lose(piece, why_none);
  const ActorId holder = holders.front();
  asked_ = holder;
  trainers_.at(holder)
      .handle.call<&Trainer::final_state>(HeldWish{weights_only, false}, offset)
      .then([this, weights_only, offset, piece, state, holder](Result<HeldPiece> held) mutable {
        if (asked_ == holder) asked_.reset();
        const std::string why = held ? why_not_of(state, holder, *held) : held.error().message();
        if (why.empty()) return piece.set(FinalPiece{state, 0, std::move(held->bytes)});
        if (state == end_states_) std::erase(end_state_.holders, holder);
        ask_holder(weights_only, offset, std::move(piece), state, why);
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
