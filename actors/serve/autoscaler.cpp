#include "actors/serve/autoscaler.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace troupe::serve {
namespace {

constexpr double kBusy = 0.7;
/// What waits is to be gone after so many seconds.
constexpr double kCatchUp = 5;
/// A batch counts half as much after 34 more.
constexpr double kForget = 0.98;

std::int64_t second_of(Instant now) {
  return std::chrono::floor<std::chrono::seconds>(now).count();
}

}  // namespace

void Autoscaler::arrived(std::int64_t rows, Instant now) {
  last_arrival_ = now;
  const std::int64_t second = second_of(now);
  Second& at = seconds_[static_cast<std::size_t>(second) % seconds_.size()];
  if (at.second != second) at = {second, 0};
  at.rows += rows;
}

void Autoscaler::computed(std::int64_t rows, Duration time) {
  const double b = static_cast<double>(rows);
  const double t = to_seconds(time);
  for (double* sum : {&n_, &b_, &bb_, &t_, &bt_}) *sum *= kForget;
  n_ += 1;
  b_ += b;
  bb_ += b * b;
  t_ += t;
  bt_ += b * t;
}

Duration Autoscaler::batch_time(std::int64_t rows) const {
  if (n_ == 0) return Duration{0};
  const double spread = n_ * bb_ - b_ * b_;
  const double slope = spread > 1e-6 * n_ * bb_ ? std::max(0.0, (n_ * bt_ - b_ * t_) / spread) : 0;
  const double constant = std::max(0.0, (t_ - slope * b_) / n_);
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(slope * static_cast<double>(rows) + constant));
}

double Autoscaler::rate(int seconds, Instant now) const {
  const std::int64_t current = second_of(now);  // not over yet
  std::int64_t rows = 0;
  for (const Second& one : seconds_) {
    if (one.second < current && one.second >= current - seconds) rows += one.rows;
  }
  return static_cast<double>(rows) / seconds;
}

Autoscaler::Wanted Autoscaler::wanted(int now_wanted, std::int64_t queued_rows, std::int64_t requests,
                                      Instant now) {
  const double rows_a_second = std::max(rate(2, now), rate(kWindow, now));
  const double row_seconds =
      to_seconds(batch_time(config_.max_batch)) / static_cast<double>(config_.max_batch);
  const double need = (rows_a_second + static_cast<double>(queued_rows) / kCatchUp) * row_seconds;
  int needed = static_cast<int>(std::ceil(std::min(need / kBusy, 1e6)));
  saturated_for_ = queued_rows >= config_.max_batch ? saturated_for_ + 1 : 0;
  if (saturated_for_ >= 2)
    needed = std::max(needed, now_wanted + 1);  // whatever was measured: it is not enough
  if (requests > 0) last_arrival_ = now;
  if (rows_a_second > 0 || requests > 0) needed = std::max(needed, 1);  // measured or not
  // What arrived long enough ago does not count twice, once in its window and once in the delay.
  if (last_arrival_ && now - *last_arrival_ > config_.downscale_delay) {
    needed = 0;
    enough_.clear();
  }
  needed = std::clamp(needed, config_.replicas.min, config_.replicas.max);

  while (!enough_.empty() && enough_.back().second <= needed) enough_.pop_back();
  enough_.emplace_back(now, needed);
  while (now - enough_.front().first > config_.downscale_delay) enough_.pop_front();
  const int least = enough_.front().second;  // the most that was needed within the delay

  Wanted result{now_wanted, ""};
  if (needed > now_wanted) result.replicas = needed;
  if (least < now_wanted) result.replicas = least;
  if (result.replicas == now_wanted) return result;
  if (now_wanted == 0) {
    result.reason = std::to_string(result.replicas) + (result.replicas == 1 ? " replica" : " replicas") +
                    " instead of none: " + std::to_string(requests) +
                    (requests == 1 ? " request waits" : " requests wait");
    return result;
  }
  char text[160];
  std::snprintf(text, sizeof text, "%d replicas instead of %d: %.0f rows a second at %.3f ms, %lld rows wait",
                result.replicas, now_wanted, rows_a_second, row_seconds * 1e3,
                static_cast<long long>(queued_rows));
  result.reason = text;
  return result;
}

}  // namespace troupe::serve
