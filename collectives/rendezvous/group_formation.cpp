#include "collectives/rendezvous/group_formation.hpp"

#include "collectives/texts.hpp"

namespace troupe::collectives {
namespace {

constexpr Duration kAnswerTime = std::chrono::seconds(10);  ///< for the store, beyond what it waits itself
constexpr std::size_t kMaxWhyChars = 4096;

}  // namespace

GroupFormation::GroupFormation(std::shared_ptr<StoreClient> client, std::string key, std::string purpose)
    : client_(std::move(client)), key_(std::move(key)), purpose_(std::move(purpose)) {}

void GroupFormation::throw_failure(const StoreResponse& failure) const {
  if (failure.status != StoreStatus::kFailed) {
    throw_error({ErrorCode::kUnavailable, purpose_, "the store knows nothing of it",
                 "the ranks run different builds, or this rank is taken for dead"});
  }
  switch (static_cast<FormationFailure>(failure.amount)) {
    case FormationFailure::kGone:
      throw_error(
          {ErrorCode::kAborted, purpose_, failure.value, "start it again, or go on without that rank"});
    case FormationFailure::kTimeout:
      throw_error({ErrorCode::kTimeout, purpose_, failure.value,
                   survivors_ ? "call rebuild() on every rank that lives, or end it"
                              : "start every rank, with the same address and size, or raise the timeout"});
    case FormationFailure::kDiffers:
      throw BadConfig(purpose_, failure.value, "give every rank the same list, in the same order of calls");
    case FormationFailure::kGaveUp:
      break;
  }
  throw_error({ErrorCode::kUnavailable, purpose_, failure.value, ""});
}

void GroupFormation::begin(const Entry& mine, Duration limit) {
  survivors_ = mine.survivors;
  entered_ =
      client_->begin({.op = StoreOp::kEnter, .key = key_, .value = encode(mine), .wait_ms = wait_ms(limit)});
}

GroupFormation::Entered GroupFormation::enter(const Entry& mine, Duration limit) {
  begin(mine, limit);
  auto answer = entered_->next(limit + kAnswerTime);
  if (!answer) {
    throw_error({ErrorCode::kTimeout, purpose_, "the store does not answer",
                 "see why the rank that serves it is stuck"});
  }
  if (answer->status == StoreStatus::kBad && mine.survivors) {
    throw_error({ErrorCode::kRefused, purpose_, "the others take this rank for dead",
                 "end this process, or initialise anew with all of them"});
  }
  const auto number = static_cast<std::uint64_t>(answer->amount);
  Gathered gathered;
  while (true) {
    if (answer->status != StoreStatus::kOk) throw_failure(*answer);
    const std::size_t before = gathered.values.size();
    decode_gathered(answer->value, gathered).value();
    if (gathered.values.size() == gathered.total) break;
    if (gathered.values.size() == before) throw_failure({.status = StoreStatus::kAbsent});
    answer = client_->ask(
        {.op = StoreOp::kMore, .key = key_, .amount = static_cast<std::int64_t>(gathered.values.size())},
        kAnswerTime);
  }
  return {{static_cast<std::uint32_t>(number >> 32), static_cast<std::uint32_t>(number)},
          std::move(gathered.values)};
}

void GroupFormation::ready(Duration limit) {
  const auto answer =
      client_->ask({.op = StoreOp::kReady, .key = key_, .wait_ms = wait_ms(limit)}, limit + kAnswerTime);
  if (answer.status != StoreStatus::kOk) throw_failure(answer);
}

void GroupFormation::give_up(const std::string& why, std::exception_ptr error) {
  const auto first =
      client_->ask({.op = StoreOp::kFail, .key = key_, .value = why.substr(0, kMaxWhyChars)}, kAnswerTime);
  // What failed here because another rank had failed says less than that rank's error.
  bool follows = false;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    follows = e.code() == ErrorCode::kAborted || e.code() == ErrorCode::kUnavailable;
  } catch (...) {
  }
  const bool gave_up = first.status != StoreStatus::kFailed ||
                       first.amount == static_cast<std::int64_t>(FormationFailure::kGaveUp);
  if (gave_up && !follows) std::rethrow_exception(error);
  throw_failure(first);
}

void GroupFormation::set(const std::string& key, std::string_view value) {
  client_->set(key_ + kFormationKeys + key, value);
}

std::int64_t GroupFormation::erase(const std::string& prefix) {
  return client_->erase(key_ + kFormationKeys + prefix);
}

std::optional<std::string> GroupFormation::find(const std::string& key, Duration wait) {
  StoreRequest request{.op = StoreOp::kFind, .key = key_ + kFormationKeys + key, .wait_ms = wait_ms(wait)};
  const auto answer = client_->ask(std::move(request), wait + kAnswerTime, entered_.get());
  if (answer.status == StoreStatus::kOk) return answer.value;
  if (failed()) throw_error({ErrorCode::kAborted, purpose_, "another rank gave up or is gone", ""});
  return std::nullopt;
}

}  // namespace troupe::collectives
