#include "actors/tune/parzen.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "actors/tune/truncated_normal.hpp"

namespace troupe::tune {
namespace {

constexpr double kLogRootTwoPi = 0.91893853320467274178;

/// 1 each; of more than 25 the first ones rise from 1/n.
std::vector<double> weights_of(std::size_t observed) {
  std::vector<double> weights(observed + 1, 1);  // the last is the prior's
  if (observed > 25) {
    const std::size_t rising = observed - 25;
    const double first = 1 / static_cast<double>(observed);
    for (std::size_t i = 0; i < rising; ++i) {
      weights[i] =
          first + (rising > 1 ? static_cast<double>(i) * ((1 - first) / static_cast<double>(rising - 1)) : 0);
    }
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// The distance to the farther neighbour; the outermost two look inwards alone.
std::vector<double> sigmas_of(const std::vector<double>& mu, double low, double high) {
  const std::size_t n = mu.size();
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return mu[a] < mu[b]; });
  const double least = (high - low) / std::min(100.0, static_cast<double>(n) + 2);
  std::vector<double> sigmas(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double left = mu[order[i]] - (i == 0 ? low : mu[order[i - 1]]);
    const double right = (i + 1 == n ? high : mu[order[i + 1]]) - mu[order[i]];
    double sigma = std::max(left, right);
    if (n >= 2 && i == 0) sigma = right;
    if (n >= 2 && i + 1 == n) sigma = left;
    sigmas[order[i]] = std::clamp(sigma, least, high - low);
  }
  return sigmas;
}

}  // namespace

double Axis::kernel_low() const {
  return is_log ? std::log(low - step / 2) : low - step / 2;
}
double Axis::kernel_high() const {
  return is_log ? std::log(high + step / 2) : high + step / 2;
}

Axis axis_of(const Domain& domain) {
  if (!domain.values.empty()) return {.choices = domain.values.size()};
  Axis axis{0, domain.low, domain.high, domain.step};
  axis.is_log = domain.kind == Domain::Kind::kLogUniform || domain.kind == Domain::Kind::kLogInteger;
  if (axis.step > 0) axis.high = axis.low + std::floor((axis.high - axis.low) / axis.step + 1e-9) * axis.step;
  return axis;
}

Parzen::Parzen(std::vector<Axis> axes, const std::vector<Point>& observed)
    : axes_(std::move(axes)), weights_(weights_of(observed.size())) {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    std::vector<double> along;
    for (const Point& point : observed) along.push_back(point[i]);
    kernels_.push_back(axes_[i].choices > 0 ? choices_of(axes_[i], along)
                                            : kernels_of(axes_[i], std::move(along)));
  }
}

Parzen::Kernels Parzen::kernels_of(const Axis& axis, std::vector<double> observed) {
  if (axis.is_log)
    std::transform(observed.begin(), observed.end(), observed.begin(), [](double x) { return std::log(x); });
  const double low = axis.kernel_low();
  const double high = axis.kernel_high();
  Kernels kernels{std::move(observed)};
  kernels.sigma = sigmas_of(kernels.mu, low, high);
  kernels.mu.push_back(0.5 * (low + high));
  kernels.sigma.push_back(high - low);
  for (std::size_t k = 0; k < kernels.mu.size(); ++k) {
    kernels.log_mass.push_back(
        log_gauss_mass((low - kernels.mu[k]) / kernels.sigma[k], (high - kernels.mu[k]) / kernels.sigma[k]));
  }
  return kernels;
}

Parzen::Kernels Parzen::choices_of(const Axis& axis, std::span<const double> observed) {
  const double prior = 1 / static_cast<double>(observed.size() + 1);
  Kernels kernels;
  for (std::size_t k = 0; k <= observed.size(); ++k) {
    std::vector<double> weights(axis.choices, prior);
    if (k < observed.size()) weights[static_cast<std::size_t>(observed[k])] += 1;
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& weight : weights) weight /= sum;
    kernels.weights.push_back(std::move(weights));
  }
  return kernels;
}

std::size_t Parzen::choose(double u) const {
  const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  double sum = 0;
  for (std::size_t k = 0; k + 1 < weights_.size(); ++k) {
    sum += weights_[k];
    if (u < sum / total) return k;
  }
  return weights_.size() - 1;
}

std::vector<Parzen::Point> Parzen::sample(Random& random, std::size_t count) const {
  std::vector<std::size_t> kernel(count);
  for (auto& k : kernel) k = choose(random.uniform());
  std::vector<Point> points(count, Point(axes_.size()));
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].choices == 0) continue;
    for (std::size_t n = 0; n < count; ++n) {
      const auto& weights = kernels_[i].weights[kernel[n]];
      const double u = random.uniform();
      std::size_t at = 0;
      for (double sum = weights[0]; at + 1 < weights.size() && sum < u; sum += weights[at]) ++at;
      points[n][i] = static_cast<double>(at);
    }
  }
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const Axis& axis = axes_[i];
    if (axis.choices > 0) continue;
    for (std::size_t n = 0; n < count; ++n) {
      const double mu = kernels_[i].mu[kernel[n]];
      const double sigma = kernels_[i].sigma[kernel[n]];
      double x = truncated_normal_quantile(random.uniform(), (axis.kernel_low() - mu) / sigma,
                                           (axis.kernel_high() - mu) / sigma);
      x = x * sigma + mu;
      if (axis.is_log) x = std::exp(x);
      if (axis.step > 0) x = axis.low + std::nearbyint((x - axis.low) / axis.step) * axis.step;
      points[n][i] = std::clamp(x, axis.low, axis.high);
    }
  }
  return points;
}

double Parzen::log_kernel(const Axis& axis, const Kernels& kernels, std::size_t k, double x) const {
  if (axis.choices > 0) return std::log(kernels.weights[k][static_cast<std::size_t>(x)]);
  const double mu = kernels.mu[k];
  const double sigma = kernels.sigma[k];
  if (axis.step > 0) {
    const double left = axis.is_log ? std::log(x - axis.step / 2) : x - axis.step / 2;
    const double right = axis.is_log ? std::log(x + axis.step / 2) : x + axis.step / 2;
    return log_gauss_mass((left - mu) / sigma, (right - mu) / sigma) - kernels.log_mass[k];
  }
  const double z = ((axis.is_log ? std::log(x) : x) - mu) / sigma;
  return -z * z / 2 - kLogRootTwoPi - kernels.log_mass[k] - std::log(sigma);
}

double Parzen::log_density(const Point& point) const {
  std::vector<double> logs(weights_.size());
  double most = -std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < weights_.size(); ++k) {
    logs[k] = std::log(weights_[k]);
    for (std::size_t i = 0; i < axes_.size(); ++i) logs[k] += log_kernel(axes_[i], kernels_[i], k, point[i]);
    most = std::max(most, logs[k]);
  }
  if (std::isinf(most)) return most;
  double sum = 0;
  for (const double each : logs) sum += std::exp(each - most);
  return std::log(sum) + most;
}

}  // namespace troupe::tune
