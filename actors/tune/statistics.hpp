/// NumPy's percentile, mean and median, to the last bit.
#pragma once

#include <span>
#include <vector>

namespace troupe::tune {

/// nanpercentile, method linear, of values without NaN in ascending order. NaN if there are none. 0 <=
/// percent <= 100.
double percentile_of_sorted(std::span<const double> sorted, double percent);
/// The same of any values: drops NaN and sorts.
double percentile(std::vector<double> values, double percent);
/// REQUIRES: not empty.
double mean(std::span<const double> values);
/// REQUIRES: not empty, no NaN.
double median(std::vector<double> values);

}  // namespace troupe::tune
