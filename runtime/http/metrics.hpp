/// What Prometheus scrapes: counters, gauges and histograms, and their text (exposition format 0.0.4).
///
///     Registry metrics;
///     auto done = metrics.counter("troupe_serve_requests_total", "Requests answered.", {{"deployment",
///     name}}); done->add(); response = {.content_type = std::string(kMetricsContentType), .body =
///     metrics.text()};
///
/// Adding and observing take relaxed atomics alone. Names: `troupe_` first, base units (`_seconds`,
/// `_bytes`), a counter ends with `_total`. Labels have few values: never a request's or an actor's id.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::http {

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

/// Thread-safe, as the others.
class Counter {
 public:
  void add(std::uint64_t more = 1) { value_.fetch_add(more, std::memory_order_relaxed); }
  /// Of a count that is kept elsewhere: never goes back.
  void raise_to(std::uint64_t value);
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double more) { value_.fetch_add(more, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  /// `bounds`: the upper ones, ascending; +Inf comes by itself.
  explicit Histogram(std::span<const double> bounds);
  void observe(double value);
  /// Adds what was counted elsewhere: `counts` as in_bucket() says. REQUIRES: one more than the bounds.
  void add(std::span<const std::uint64_t> counts, double sum);

  const std::vector<double>& bounds() const { return bounds_; }
  /// One more than the bounds: the last is above all of them.
  std::uint64_t in_bucket(std::size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

/// Seconds, from a tenth of a millisecond to ten.
inline constexpr double kDurationBounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                             0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};

using Labels = std::vector<std::pair<std::string, std::string>>;

/// Every metric of a process. Thread-safe. A series is there for as long as somebody holds it, and the same
/// name and labels give the same one. Throws BadConfig for a name that Prometheus does not take, a counter
/// without
/// `_total`, and a name that has another kind already.
class Registry {
 public:
  std::shared_ptr<Counter> counter(std::string_view name, std::string_view help, const Labels& labels = {});
  std::shared_ptr<Gauge> gauge(std::string_view name, std::string_view help, const Labels& labels = {});
  std::shared_ptr<Histogram> histogram(std::string_view name, std::string_view help,
                                       const Labels& labels = {},
                                       std::span<const double> bounds = kDurationBounds);
  std::string text() const;

 private:
  using Metric = std::variant<std::weak_ptr<Counter>, std::weak_ptr<Gauge>, std::weak_ptr<Histogram>>;
  struct Family {
    std::string help;
    std::size_t kind = 0;                  ///< the index of Metric
    std::map<std::string, Metric> series;  ///< by its labels as text: `a="b",c="d"`
  };
  template <class Kind, class... Arguments>
  std::shared_ptr<Kind> get(std::string_view name, std::string_view help, const Labels& labels,
                            Arguments... arguments);

  mutable std::mutex mutex_;
  std::map<std::string, Family, std::less<>> families_;
};

}  // namespace troupe::http
