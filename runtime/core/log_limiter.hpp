/// Keeps others from filling our log: what anybody on the network can cause is logged some times a minute at most.
#pragma once

#include "runtime/core/clock.hpp"
#include "runtime/core/log.hpp"

namespace troupe {

/// Lines of one level, at most 20 a minute; the last of them says that more are left out. Not thread-safe.
class LimitedLog {
 public:
  explicit LimitedLog(LogLevel level) : level_(level) {}
  void operator()(std::string_view text, Instant now) {
    if (now - since_ >= kWindow || lines_ == 0) {
      since_ = now;
      lines_ = 0;
    }
    if (++lines_ > kLines) return;
    log(level_, lines_ < kLines ? std::string(text) : std::string(text) + " (more of these are left out for a minute)");
  }

 private:
  static constexpr Duration kWindow = std::chrono::minutes(1);
  static constexpr int kLines = 20;
  const LogLevel level_;
  Instant since_{};
  int lines_ = 0;
};

}  // namespace troupe
