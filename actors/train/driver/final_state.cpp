#include "actors/train/driver/final_state.hpp"

#include <algorithm>
#include <map>

#include "actors/checkpoint/safetensors.hpp"

namespace troupe::train {
namespace {

/// For a piece of the state: the first one is laid out when it is asked for.
constexpr Duration kPieceArrives = std::chrono::seconds(60);
constexpr int kPieceTries = 3;

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

wire::Bytes take_final_state(const ActorHandle<TrainDriver>& driver, bool weights_only,
                             const std::function<bool()>& goes_on) {
  wire::Bytes all;
  for (int failures = 0;;) {
    try {
      const auto piece = driver.call<&TrainDriver::final_state>(weights_only, all.size()).get(kPieceArrives);
      if (piece.empty()) break;
      all.insert(all.end(), piece.begin(), piece.end());
    } catch (const Error&) {
      if (++failures == kPieceTries || !goes_on()) throw;
    }
  }
  const auto parts = driver.call<&TrainDriver::final_parts>().get(kPieceArrives);
  if (!parts.empty()) check_parts(all, parts).value();  // where a job only holds nobody hashes them
  return all;
}

// The driver's side.

Future<wire::Bytes> TrainDriver::final_state(bool weights_only, std::uint64_t offset) {
  // Whoever has not answered by now holds it in vain.
  if (asked_) std::erase(end_state_.holders, *std::exchange(asked_, std::nullopt));
  Promise<wire::Bytes> piece;
  ask_holder(weights_only, offset, piece, "no trainer is left that has it");
  return piece.future();
}

/// Asks one after the other until one of them holds what the job ended with. All hold the same bytes, so each
/// piece may be another one's.
void TrainDriver::ask_holder(bool weights_only, std::uint64_t offset, Promise<wire::Bytes> piece,
                             const std::string& why_none) {
  auto& holders = end_state_.holders;
  std::erase_if(holders, [this](ActorId holder) { return !trainers_.contains(holder); });
  if (holders.empty())
    return piece.fail(
        {ErrorCode::kUnavailable, "the job's state is lost", why_none, "take its newest checkpoint"});
  const ActorId holder = holders.front();
  asked_ = holder;
  trainers_.at(holder)
      .handle.call<&Trainer::final_state>(weights_only, offset)
      .then([this, weights_only, offset, piece, holder](Result<HeldPiece> held) mutable {
        if (asked_ == holder) asked_.reset();
        const bool same = held && held->steps == end_state_.steps && held->lineage == end_state_.lineage;
        if (same) return piece.set(std::move(held->bytes));
        std::erase(end_state_.holders, holder);
        ask_holder(weights_only, offset, std::move(piece),
                   held ? names_[holder] + " holds " + std::to_string(held->steps) + " steps, the job has " +
                              std::to_string(end_state_.steps)
                        : held.error().message());
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
