#include "scheduler/init/restarts.hpp"

#include <algorithm>

#include "runtime/link/key_refused.hpp"

namespace troupe {

void Restarts::up(Instant now) {
  up_since_ = now;
  was_up_ = true;
  starts_ = 0;
  blocked_ = 0;
}

std::optional<Duration> Restarts::died(Instant now, std::string why) {
  last_ = std::move(why);
  const bool settled = up_since_ && now - *up_since_ >= policy_.settled;
  starts_ = up_since_ ? 0 : starts_ + 1;
  deaths_ = settled ? 1 : deaths_ + 1;
  up_since_.reset();
  if (starts_ >= policy_.most_starts || deaths_ >= policy_.most_deaths) return std::nullopt;
  if (deaths_ == 1) return Duration(0);
  return wait_after(deaths_ - 1, policy_.longest);
}

Duration Restarts::blocked(std::string why) {
  last_ = std::move(why);
  up_since_.reset();
  return wait_after(++blocked_, policy_.longest_blocked);
}

namespace {

/// What failed then may come back. A disk that is full had room when it came up the first time.
bool may_come_back(Restarts::Failed at, ErrorCode why) {
  switch (at) {
    case Restarts::Failed::kStart:  // the head that it joins is away, late, or killed in a handshake
      return why == ErrorCode::kUnavailable || why == ErrorCode::kTimeout || why == ErrorCode::kIo ||
             why == ErrorCode::kRefused;
    case Restarts::Failed::kJoin:  // the head's store is late
      return why == ErrorCode::kTimeout || why == ErrorCode::kIo;
    case Restarts::Failed::kReady:
      return why == ErrorCode::kIo;
    case Restarts::Failed::kRunning:
      break;
  }
  return false;
}

}  // namespace

Restarts::Next Restarts::failed(Instant now, const std::string& name, const ErrorInfo& why, Failed at) {
  const bool was_up = was_up_;
  is_unexplained_ = at == Failed::kRunning;
  if (at == Failed::kStart && is_key_refused(why)) {
    died(now, why.message());
    return {std::nullopt, why, true};
  }
  const auto wait = was_up && may_come_back(at, why.code) ? blocked(why.message()) : died(now, why.message());
  if (!was_up && why.code != ErrorCode::kUnavailable && why.code != ErrorCode::kTimeout)
    return {std::nullopt, why, true};
  if (!wait) return {std::nullopt, gave_up(name)};
  return {wait};
}

Duration Restarts::wait_after(int failures, Duration longest) const {
  Duration wait = policy_.first;
  for (int i = 1; i < failures && wait < longest; ++i) wait *= 2;
  return std::min(wait, longest);
}

ErrorInfo Restarts::gave_up(const std::string& name) const {
  const bool never = starts_ >= policy_.most_starts;
  return {ErrorCode::kUnavailable, name + (never ? " does not come up" : " does not stay up"),
          std::to_string(never ? starts_ : deaths_) + " times in a row; the last time: " + last_,
          never && !was_up_ && is_unexplained_
              ? "call troupe::init first in main(): this executable is started again for every process of a "
                "cluster. If it is, look at the lines above; TROUPE_LOG=debug prints more"
              : "look at the lines above; TROUPE_LOG=debug prints more"};
}

}  // namespace troupe
