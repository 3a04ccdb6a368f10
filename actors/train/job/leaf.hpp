/// One logical rank's part of one step, as the job's loss sees it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/train/job/figures.hpp"
#include "runtime/core/random.hpp"

namespace troupe::train {

/// Where a leaf stands, and what it tells beside its loss. Lives for one call of loss() or evaluate().
class Leaf {
 public:
  struct Place {
    std::int64_t step = 0;  ///< of the job, from 0
    int epoch = 0;          ///< from 0
    int rank = 0;           ///< the logical rank; of a piece of the test set its number
  };
  /// `seed`: of `random`.
  Leaf(Place place, std::uint64_t seed)
      : step(place.step), epoch(place.epoch), rank(place.rank), random(seed) {}

  const std::int64_t step;
  const int epoch;
  const int rank;
  /// A stream of this leaf's own: the same wherever and however often it runs. (LibTorch's default generator
  /// is seeded for the leaf, too.) That of a piece of the test set is another one in each epoch.
  SeededRandom random;

  /// Adds to a figure of the epoch, which is sum / weight over all leaves: added in one fixed order, so that
  /// it is the same for any number of trainers. It appears as "train/<name>", in an evaluation as
  /// "test/<name>".
  ///     at.count("top5", hits, batch.size());
  void count(const std::string& name, double sum, double weight) { add({name, sum, weight}); }
  /// See metrics.hpp.
  void add(Figure figure) { figures_.push_back(std::move(figure)); }
  /// The same of a tensor of one element. One on a GPU is read when the leaf is done: nothing waits for it.
  void count(const std::string& name, const at::Tensor& sum, double weight) {
    if (sum.is_cpu()) return count(name, sum.item<double>(), weight);
    sums_on_device_.emplace_back(figures_.size(), sum);
    count(name, 0.0, weight);
  }

  /// The share of this leaf in the step's mean, where leaves have unlike shares: its number of tokens. The
  /// gradient is then the sum of weight x gradient over all leaves, divided by the sum of the weights. All
  /// leaves give one, or none does. REQUIRES: finite, not negative.
  void weight(double share) { weight_ = share; }

  // For the engine.
  const std::optional<double>& weight() const { return weight_; }
  std::vector<Figure>& figures() { return figures_; }
  /// The figures with what is on the device, which is waited for.
  std::vector<Figure> read_figures() {
    for (const auto& [place, sum] : sums_on_device_) figures_[place].sum = sum.item<double>();
    sums_on_device_.clear();
    return std::move(figures_);
  }
  /// Of which figures, by their place, the sum is still on the device.
  const std::vector<std::pair<std::size_t, at::Tensor>>& sums_on_device() const { return sums_on_device_; }

 private:
  std::optional<double> weight_;
  std::vector<Figure> figures_;
  std::vector<std::pair<std::size_t, at::Tensor>> sums_on_device_;
};

}  // namespace troupe::train
