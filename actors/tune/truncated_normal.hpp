/// The normal distribution between two bounds, for tails, too. Formulas are SciPy's and Optuna's.
#pragma once

namespace troupe::tune {

/// The logarithm of the standard normal's mass in [a, b]. REQUIRES: a < b.
double log_gauss_mass(double a, double b);
/// x such that the standard normal, cut off outside [a, b], has a part q of its mass below. 0 <= q <= 1.
double truncated_normal_quantile(double q, double a, double b);

}  // namespace troupe::tune
