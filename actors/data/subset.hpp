/// Parts of another dataset: chosen samples, the first ones, or a random split.
///
///     const auto parts = random_split(Idx(folder, Split::kTrain), {55'000, 5'000}, /*seed=*/1);
///     return parts[split == Split::kTrain ? 0 : 1];
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/data/dataset.hpp"

namespace troupe::data {

/// torch.utils.data.Subset: the samples of another dataset at `indices`, in their order; one that is named
/// twice is there twice. Sample i draws its chance as sample i of this dataset, not of the whole.
///
/// Thread-safe where the whole is. Copies share it.
class Subset final : public Dataset {
 public:
  /// Throws BadConfig for an index that the whole does not have.
  template <DatasetLike T>
  Subset(T whole, std::vector<std::int64_t> indices)
      : Subset(Shared{share(std::move(whole))}, std::move(indices)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_->size()); }
  Sample get(std::int64_t index, Random& random) const override { return whole_->get(at(index), random); }
  std::optional<Sample> collate(const std::vector<Sample>& samples) const override {
    return whole_->collate(samples);
  }
  std::vector<FieldSpec> fields() const override { return whole_->fields(); }
  bool uses_random_alone() const override { return whole_->uses_random_alone(); }
  void write(std::int64_t index, Random& random,
             std::span<const std::span<std::byte>> places) const override {
    whole_->write(at(index), random, places);
  }
  void prefetch(std::int64_t index) const override { whole_->prefetch(at(index)); }

 private:
  struct Shared {
    std::shared_ptr<Dataset> whole;
  };
  Subset(Shared whole, std::vector<std::int64_t> indices);
  std::int64_t at(std::int64_t index) const { return (*indices_)[static_cast<std::size_t>(index)]; }

  std::shared_ptr<Dataset> whole_;
  std::shared_ptr<const std::vector<std::int64_t>> indices_;
};

/// Which samples of `size` each part has: torch.utils.data.random_split with a CPU generator that was seeded
/// with `seed`, number for number. The same on every host. `lengths` add up to `size`; `fractions` add up to
/// 1, and what rounding down leaves over goes to the parts in turn. Throws BadConfig for others.
std::vector<std::vector<std::int64_t>> split_indices(std::int64_t size,
                                                     const std::vector<std::int64_t>& lengths,
                                                     std::uint64_t seed);
std::vector<std::vector<std::int64_t>> split_indices(std::int64_t size, const std::vector<double>& fractions,
                                                     std::uint64_t seed);

/// The parts of a dataset, by `lengths` (integers) or fractions, as split_indices deals them.
template <DatasetLike T, class Number>
requires std::integral<Number> || std::floating_point<Number> std::vector<Subset> random_split(
    T whole, const std::vector<Number>& parts, std::uint64_t seed) {
  using Part = std::conditional_t<std::integral<Number>, std::int64_t, double>;
  const std::shared_ptr<Dataset> shared = share(std::move(whole));
  std::vector<Subset> subsets;
  for (auto& indices : split_indices(shared->size(), std::vector<Part>(parts.begin(), parts.end()), seed))
    subsets.emplace_back(shared, std::move(indices));
  return subsets;
}
template <DatasetLike T, class Number>
std::vector<Subset> random_split(T whole, std::initializer_list<Number> parts, std::uint64_t seed) {
  return random_split(std::move(whole), std::vector<Number>(parts), seed);
}

/// The first `count` samples, or all of them if there are fewer: for trials that should take seconds.
template <DatasetLike T>
Subset first_samples(T whole, std::int64_t count) {
  const std::shared_ptr<Dataset> shared = share(std::move(whole));
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < count && i < shared->size(); ++i) indices.push_back(i);
  return Subset(shared, std::move(indices));
}

}  // namespace troupe::data
