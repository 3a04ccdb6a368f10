#include "actors/tune/domain.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "actors/tune/portable_math.hpp"
#include "runtime/core/error.hpp"

namespace troupe::tune {
namespace {

using Kind = Domain::Kind;

bool is_log(Kind kind) {
  return kind == Kind::kLogUniform || kind == Kind::kLogInteger;
}
bool is_whole(Kind kind) {
  return kind == Kind::kInteger || kind == Kind::kLogInteger;
}
bool is_listed(Kind kind) {
  return kind == Kind::kChoice || kind == Kind::kGrid;
}

struct Refusal {
  std::string why, todo;
};

/// No draw of standard_normal() is farther from 0.
constexpr double kFarthest = 16;
/// From here on not every integer is a double.
constexpr double kMostWhole = 0x1p53;

Refusal refusal_of_range(const Domain& domain) {
  if (!std::isfinite(domain.low) || !std::isfinite(domain.high)) {
    return {"a bound is not a finite number", "give two finite numbers"};
  }
  if (domain.kind == Kind::kNormal) {
    if (domain.high <= 0) return {"a standard deviation is above 0", "give tune::normal(mean, deviation)"};
  } else if (domain.low > domain.high) {
    return {"the range is inverted: its low end is above its high end", "swap the two"};
  } else if (domain.low == domain.high && !is_whole(domain.kind)) {
    return {"the range is empty: its ends are equal", "widen it, or write tune::constant(value)"};
  }
  if (is_log(domain.kind) && domain.low < (is_whole(domain.kind) ? 1 : 0x1p-1022)) {
    return {
        domain.low == 0 ? "zero has no logarithm" : "so small a number has no logarithm here",
        is_whole(domain.kind) ? "begin the range at 1 or above" : "begin the range above zero, as at 1e-6"};
  }
  if (is_whole(domain.kind) &&
      std::max({std::abs(domain.low), std::abs(domain.high), domain.step}) >= kMostWhole) {
    return {"integers of 2^53 and above are not all numbers of a double", "give smaller ones"};
  }
  const double span = domain.kind == Kind::kNormal ? std::abs(domain.low) + kFarthest * domain.high
                                                   : domain.high - domain.low;
  if (!std::isfinite(span)) {
    return {"its values are too far apart for a double", "give a narrower range"};
  }
  const bool needs_step = is_whole(domain.kind);
  if (!std::isfinite(domain.step) || domain.step < 0 || (needs_step && domain.step == 0)) {
    return {"its step is not a number above 0", "leave the step out, or give one above 0"};
  }
  if (!is_whole(domain.kind) && domain.step > 0 && span / domain.step >= kMostWhole) {
    return {"its step is too small: a double cannot tell so many values apart",
            "give a larger step, or leave it out"};
  }
  if (domain.kind != Kind::kNormal && domain.step > domain.high - domain.low && domain.step > 1) {
    return {"its step is larger than the range", "give a step that fits in it"};
  }
  return {};
}

/// low, low + step, ...: how many up to high.
std::uint64_t steps_of(const Domain& domain) {
  return static_cast<std::uint64_t>((domain.high - domain.low) / domain.step * (1 + 1e-12) + 1e-9) + 1;
}

double standard_normal(Random& random) {  // Marsaglia's polar method
  while (true) {
    const double x = 2 * random.uniform() - 1;
    const double y = 2 * random.uniform() - 1;
    const double s = x * x + y * y;
    if (s > 0 && s < 1) return x * std::sqrt(-2 * portable_log(s) / s);
  }
}

double draw_number(const Domain& domain, Random& random) {
  const double low = domain.low;
  const double high = domain.high;
  switch (domain.kind) {
    case Kind::kNormal: {
      const double value = low + high * standard_normal(random);
      return domain.step > 0 ? std::round(value / domain.step) * domain.step : value;
    }
    case Kind::kLogUniform:
    case Kind::kLogInteger: {
      const double half =
          is_whole(domain.kind) ? 0.5 : 0;  // so that the ends are as likely as their neighbours
      const double from = portable_log(low - half);
      const double value = portable_exp(from + (portable_log(high + half) - from) * random.uniform());
      const double rounded =
          domain.step > 0 ? low + std::round((value - low) / domain.step) * domain.step : value;
      return std::clamp(rounded, low, high);
    }
    default:
      if (domain.step > 0)
        return std::min(high, low + domain.step * static_cast<double>(random.below(steps_of(domain))));
      return low + (high - low) * random.uniform();
  }
}

}  // namespace

std::string to_text(const Domain& domain) {
  static constexpr const char* kNames[] = {"uniform",     "log_uniform", "normal", "integer",
                                           "log_integer", "choice",      "grid"};
  std::string text = kNames[static_cast<int>(domain.kind)];
  text += "(";
  if (is_listed(domain.kind)) {
    for (std::size_t i = 0; i < domain.values.size() && i < 20; ++i) {
      text += (i == 0 ? "" : ", ") + to_text(domain.values[i]);
    }
    if (domain.values.size() > 20) text += ", ... " + std::to_string(domain.values.size()) + " values";
  } else {
    text += to_text(Value(domain.low)) + ", " + to_text(Value(domain.high));
    if (domain.step != (is_whole(domain.kind) ? 1 : 0)) text += ", " + to_text(Value(domain.step));
  }
  return text + ")";
}

void check_holds(const Parameter& parameter, double least, double most) {
  const Domain& domain = parameter.domain;
  const double reach = domain.kind == Kind::kNormal ? kFarthest * domain.high : 0;
  std::vector<double> values{domain.low - reach,
                             domain.kind == Kind::kNormal ? domain.low + reach : domain.high};
  if (is_listed(domain.kind)) {
    values.clear();
    for (const Value& value : domain.values) values.push_back(number_of(value));
  }
  for (const double value : values) {
    if (!std::isfinite(value) || (value >= least && value <= most)) continue;
    throw BadConfig("tune: " + parameter.name + " cannot be drawn from " + to_text(domain),
                    "its field holds " + to_text(Value(least)) + " to " + to_text(Value(most)),
                    "give values in between, or the field a wider type");
  }
}

void check(const std::vector<Parameter>& parameters) {
  std::set<std::string> names;
  double points = 1;
  for (const auto& [name, domain, conditional] : parameters) {
    Refusal refusal;
    if (name.empty()) {
      refusal = {"its field has no name: it is no plain aggregate's", "write tune::field<&Job::field>()"};
    } else if (!names.insert(name).second) {
      refusal = {"it is in the space twice", "give each field one domain"};
    } else if (is_listed(domain.kind)) {
      if (domain.values.empty()) refusal = {"there are no values to draw from", "give one or more values"};
    } else {
      refusal = refusal_of_range(domain);
    }
    if (!refusal.why.empty()) {
      throw BadConfig("tune: " + name + " cannot be drawn from " + to_text(domain), refusal.why,
                      refusal.todo);
    }
    if (domain.kind == Kind::kGrid) points *= static_cast<double>(domain.values.size());
  }
  if (points > static_cast<double>(kMostGridPoints)) {
    throw BadConfig("tune: the grid has " + to_text(Value(points)) + " points",
                    "each is a trial, and " + std::to_string(kMostGridPoints) + " are the most",
                    "make some grids coarser, or draw them: tune::choice, tune::uniform");
  }
}

std::size_t grid_points(const std::vector<Parameter>& parameters) {
  std::size_t points = 1;
  for (const auto& each : parameters) {
    if (each.domain.kind == Kind::kGrid) points *= each.domain.values.size();
  }
  return points;
}

Value draw(const Domain& domain, Random& random) {
  if (is_listed(domain.kind)) return domain.values[random.below(domain.values.size())];
  const double number = draw_number(domain, random);
  if (is_whole(domain.kind)) return static_cast<std::int64_t>(number);
  return number;
}

}  // namespace troupe::tune
