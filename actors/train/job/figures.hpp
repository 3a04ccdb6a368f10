/// Sums by name that add up over leaves, steps and pieces of a test set.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace troupe::train {

/// A mean under way: sum / weight.
struct Figure {
  std::string name;
  double sum = 0;
  double weight = 0;
  double value() const { return sum / weight; }
  bool operator==(const Figure&) const = default;
};

/// What a step's apply came to, by name: "learning_rate", "gradient_norm". The same on every trainer.
using StepValues = std::map<std::string, double>;

/// Adds `more` in its order. The order of calls is the order of the additions, and so of the bits.
inline void add_figures(std::vector<Figure>& into, const std::vector<Figure>& more) {
  for (const Figure& figure : more) {
    const auto at =
        std::find_if(into.begin(), into.end(), [&](const Figure& f) { return f.name == figure.name; });
    if (at == into.end()) {
      into.push_back(figure);
    } else {
      at->sum += figure.sum;
      at->weight += figure.weight;
    }
  }
}

}  // namespace troupe::train
