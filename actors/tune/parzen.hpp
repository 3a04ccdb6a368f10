/// The density of good, or of other, trials that TPE draws from and compares by: a mixture of one kernel an
/// observation and a prior (Bergstra et al. 2011; with several parameters a kernel is their product).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "actors/tune/domain.hpp"

namespace troupe::tune {

/// A parameter as TPE models it: a number, or the index of a choice.
struct Axis {
  std::size_t choices = 0;  ///< 0: a number
  double low = 0, high = 0;
  double step = 0;  ///< 0: continuous
  bool is_log = false;

  double kernel_low() const;  ///< with half a step around, and as a logarithm
  double kernel_high() const;
};
Axis axis_of(const Domain& domain);

class Parzen {
 public:
  using Point = std::vector<double>;  ///< a coordinate an axis

  /// `observed` are in the order of trials: later ones weigh more where there are many.
  Parzen(std::vector<Axis> axes, const std::vector<Point>& observed);
  std::vector<Point> sample(Random& random, std::size_t count) const;
  double log_density(const Point& point) const;

 private:
  struct Kernels {  // of one axis, one an observation and the prior
    std::vector<double> mu{}, sigma{};
    std::vector<double> log_mass{};              // between the bounds
    std::vector<std::vector<double>> weights{};  // of a choice
  };
  static Kernels kernels_of(const Axis& axis, std::vector<double> observed);
  static Kernels choices_of(const Axis& axis, std::span<const double> observed);
  std::size_t choose(double u) const;
  double log_kernel(const Axis& axis, const Kernels& kernels, std::size_t k, double x) const;

  std::vector<Axis> axes_;
  std::vector<double> weights_;
  std::vector<Kernels> kernels_;
};

}  // namespace troupe::tune
