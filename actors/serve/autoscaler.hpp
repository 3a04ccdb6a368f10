/// How many replicas a deployment needs, by what its batches were measured to take. Pure.
///
/// A batch of b rows takes a*b + c seconds: a and c are fitted to the batches that were computed. Rows that
/// arrive at a rate of r then need r * (a + c/B) replicas, where B is a full batch; replicas are to be busy
/// for 70 % of their time. So no target is set by hand. More replicas start at once; fewer must have been
/// enough for the whole downscale_delay. None is enough while no request arrives and none is without an
/// answer. (Ray Serve asks for a number of requests a replica; Knative's panic
/// window, pkg/autoscaler/scaling, is where the two windows of the rate come from.)
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "actors/serve/deployment_types.hpp"

namespace troupe::serve {

/// Not thread-safe.
class Autoscaler {
 public:
  explicit Autoscaler(const DeploymentConfig& config) : config_(config) {}

  /// Rows that somebody wanted, also where they were refused.
  void arrived(std::int64_t rows, Instant now);
  void computed(std::int64_t rows, Duration time);

  struct Wanted {
    int replicas = 1;
    std::string reason;
  };
  /// REQUIRES: called about once a second. `now_wanted`: as it is. `requests`: without an answer, those that
  /// wait and those that are computed.
  Wanted wanted(int now_wanted, std::int64_t queued_rows, std::int64_t requests, Instant now);

  /// Other least and most from here on. `now_wanted` counts as needed now: fewer start to be enough.
  void set_range(Replicas replicas, int now_wanted, Instant now) {
    config_.replicas = replicas;
    enough_ = {{now, now_wanted}};
  }

  /// What a batch of so many rows takes; zero until one was computed.
  Duration batch_time(std::int64_t rows) const;

 private:
  static constexpr int kWindow = 6;  ///< seconds
  double rate(int seconds, Instant now) const;

  DeploymentConfig config_;
  struct Second {
    std::int64_t second = -1;
    std::int64_t rows = 0;
  };
  std::array<Second, kWindow + 1> seconds_{};
  double n_ = 0, b_ = 0, bb_ = 0, t_ = 0, bt_ = 0;  ///< sums over batches, the newest counting most
  std::optional<Instant> last_arrival_;         ///< or the last look that found a request without an answer
  int saturated_for_ = 0;                       ///< calls in a row that found a full batch waiting
  std::deque<std::pair<Instant, int>> enough_;  ///< what was needed, within downscale_delay; decreasing
};

}  // namespace troupe::serve
