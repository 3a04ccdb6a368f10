#include "actors/tune/truncated_normal.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe::tune {
namespace {

constexpr double kRootHalf = 0.70710678118654752440;
constexpr double kLogRootTwoPi = 0.91893853320467274178;

double normal_below(double x) {
  return x < -1 ? 0.5 * std::erfc(-x * kRootHalf) : 0.5 + 0.5 * std::erf(x * kRootHalf);
}

double log_normal_below(double x) {
  if (x > 6) return -normal_below(-x);
  if (x > -20) return std::log(normal_below(x));
  double sum = 1;  // the asymptotic series of the tail
  double term = 1;
  for (int i = 1; i < 100 && std::abs(term) > std::numeric_limits<double>::epsilon(); ++i) {
    term *= -(2 * i - 1) / (x * x);
    sum += term;
  }
  return -0.5 * x * x - std::log(-x) - kLogRootTwoPi + std::log(sum);
}

double log_sum(double a, double b) {
  return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

/// x such that log_normal_below(x) == y, by Newton's method.
double quantile_of_log(double y) {
  const bool flipped = y > -1e-2;  // near 1 its complement has more digits
  const double z = flipped ? std::log(-std::expm1(y)) : y;
  double x =
      z < -5 ? -std::sqrt(-2 * (z + kLogRootTwoPi)) : -std::sqrt(3.0) / M_PI * std::log(std::expm1(-z));
  for (int i = 0; i < 100; ++i) {
    const double below = log_normal_below(x);
    const double dx = (below - z) * std::exp(below + 0.5 * x * x + kLogRootTwoPi);
    x -= dx;
    if (!(std::abs(dx) >= 1e-8 * std::abs(x))) break;
  }
  return flipped ? -x : x;
}

}  // namespace

double log_gauss_mass(double a, double b) {
  if (a > 0) return log_gauss_mass(-b, -a);  // the left tail has more digits
  if (b > 0) return std::log1p(-normal_below(a) - normal_below(-b));
  const double upper = log_normal_below(b);
  return upper + std::log1p(-std::exp(log_normal_below(a) - upper));
}

double truncated_normal_quantile(double q, double a, double b) {
  if (q <= 0) return a;
  if (q >= 1) return b;
  const double mass = log_gauss_mass(a, b);
  const double x = a < 0 ? quantile_of_log(log_sum(log_normal_below(a), std::log(q) + mass))
                         : -quantile_of_log(log_sum(log_normal_below(-b), std::log1p(-q) + mass));
  return std::clamp(x, a, b);
}

}  // namespace troupe::tune
