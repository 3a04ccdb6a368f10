/// Sums by name that add up over leaves, steps and pieces of a test set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace troupe::train {

enum class FigureKind : std::uint8_t {
  kMean,         ///< sum / weight
  kExponential,  ///< exp of that
  kConfusion,    ///< counts alone: how often class i was taken for class j, row by row
  kRoot,         ///< the root of that mean
  kArea,         ///< counts alone: of negatives by score, then of positives; the area under their ROC curve
  kR2,           ///< counts alone: values, their sum, that of their squares, that of squared errors
};

/// How often a positive scores higher than a negative, where ties count half. `counts`: of negatives in each
/// range of scores, ascending, then of positives. NaN where there are none of either.
inline double area_under_roc(const std::vector<double>& counts) {
  const std::size_t ranges = counts.size() / 2;
  double below = 0, positives = 0, area = 0;
  for (std::size_t i = 0; i < ranges; ++i) {
    const double negative = counts[i];
    const double positive = counts[ranges + i];
    area += positive * (below + negative / 2);
    below += negative;
    positives += positive;
  }
  return area / (below * positives);
}

/// 1 - squared errors / squared distances from the mean. NaN for counts that are none.
inline double r2_of(const std::vector<double>& counts) {
  if (counts.size() != 4) return std::nan("");
  return 1 - counts[3] / (counts[2] - counts[1] * counts[1] / counts[0]);
}

/// A mean under way, or what else adds up.
struct Figure {
  std::string name;
  double sum = 0;
  double weight = 0;
  FigureKind kind = FigureKind::kMean;
  std::vector<double> counts{};
  double value() const {
    if (kind == FigureKind::kExponential) return std::exp(sum / weight);
    if (kind == FigureKind::kRoot) return std::sqrt(sum / weight);
    if (kind == FigureKind::kArea) return area_under_roc(counts);
    if (kind == FigureKind::kR2) return r2_of(counts);
    return sum / weight;
  }
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
      if (at->counts.size() != figure.counts.size()) at->counts.clear();  // of other classes: no figure
      for (std::size_t i = 0; i < at->counts.size(); ++i) at->counts[i] += figure.counts[i];
    }
  }
}

/// Precision, recall and F1 of each class, with 0 where a class never was or never was predicted.
struct ClassScores {
  std::vector<double> precision, recall, f1;
};
inline ClassScores scores_of(const std::vector<double>& counts) {
  const auto classes = static_cast<std::size_t>(std::llround(std::sqrt(static_cast<double>(counts.size()))));
  const auto part = [](double of, double all) { return all > 0 ? of / all : 0; };
  ClassScores scores;
  for (std::size_t i = 0; i < classes; ++i) {
    double was = 0, predicted = 0;
    for (std::size_t j = 0; j < classes; ++j) {
      was += counts[i * classes + j];
      predicted += counts[j * classes + i];
    }
    const double hits = counts[i * classes + i];
    scores.precision.push_back(part(hits, predicted));
    scores.recall.push_back(part(hits, was));
    scores.f1.push_back(part(2 * hits, was + predicted));
  }
  return scores;
}

/// What the figure comes to, as "test/<name>"; of a confusion the means over classes, as sklearn's "macro".
inline void add_metrics(std::map<std::string, double>& into, const std::string& set, const Figure& figure) {
  if (figure.kind != FigureKind::kConfusion) {
    into[set + figure.name] = figure.value();
    return;
  }
  const ClassScores scores = scores_of(figure.counts);
  const std::string prefix = set + (figure.name.empty() ? "" : figure.name + "/");
  const auto mean = [](const std::vector<double>& of) {
    return std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(of.size());
  };
  into[prefix + "precision"] = mean(scores.precision);
  into[prefix + "recall"] = mean(scores.recall);
  into[prefix + "f1"] = mean(scores.f1);
}

}  // namespace troupe::train
