#include "actors/tune/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe::tune {
namespace {

double pairwise_sum(std::span<const double> a) {
  if (a.size() < 8) {
    double sum = 0;
    for (const double value : a) sum += value;
    return sum;
  }
  if (a.size() <= 128) {
    double r[8];
    std::copy_n(a.begin(), 8, r);
    std::size_t i = 8;
    for (; i + 8 <= a.size(); i += 8) {
      for (std::size_t j = 0; j < 8; ++j) r[j] += a[i + j];
    }
    double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < a.size(); ++i) sum += a[i];
    return sum;
  }
  const std::size_t half = a.size() / 2 / 8 * 8;
  return pairwise_sum(a.first(half)) + pairwise_sum(a.subspan(half));
}

}  // namespace

double percentile_of_sorted(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::size_t last = sorted.size() - 1;
  const double at = static_cast<double>(last) * (percent / 100);
  const double low = at >= static_cast<double>(last) ? static_cast<double>(last) : std::floor(at);
  const double below = sorted[static_cast<std::size_t>(low)];
  const double above = sorted[std::min(static_cast<std::size_t>(low) + 1, last)];
  const double part = at - low;
  const double difference = above - below;
  return part < 0.5 ? below + difference * part : above - difference * (1 - part);
}

double percentile(std::vector<double> values, double percent) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  std::sort(values.begin(), values.end());
  return percentile_of_sorted(values, percent);
}

double mean(std::span<const double> values) {
  return pairwise_sum(values) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace troupe::tune
