#include "actors/tune/portable_math.hpp"

#include <cmath>
#include <limits>

namespace troupe::tune {
namespace {

// ln 2 in two parts: k * kLn2High is exact for |k| < 2^20.
constexpr double kLn2High = 0x1.62e42fee00000p-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

}  // namespace

double portable_exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 709.78) return std::numeric_limits<double>::infinity();
  if (x < -708) return 0;
  const double k = std::floor(x * 0x1.71547652b82fep+0 + 0.5);  // x / ln 2, to the nearest
  const double rest = (x - k * kLn2High) - k * kLn2Low;
  double sum = 1;
  for (int n = 14; n > 0; --n) sum = 1 + sum * rest / n;
  return std::ldexp(sum, static_cast<int>(k));
}

double portable_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0x1.6a09e667f3bcdp-1) m *= 2, --exponent;  // in [sqrt(1/2), sqrt(2))
  const double s = (m - 1) / (m + 1);
  const double square = s * s;
  double sum = 0;
  for (int n = 23; n >= 1; n -= 2) sum = sum * square + 1.0 / n;
  return exponent * kLn2High + (exponent * kLn2Low + 2 * s * sum);
}

}  // namespace troupe::tune
