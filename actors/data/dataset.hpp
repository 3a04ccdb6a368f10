/// Map-style datasets: a size and access by index. What a loader actor gathers batches from.
///
///     struct Reviews {
///       std::int64_t size() const;
///       troupe::data::Sample get(std::int64_t index, troupe::data::Random& random) const {
///         return {{"input", tokens_of(index)}, {"target", class_of(index)}};   // torch tensors, vectors,
///         numbers
///       }
///       troupe::data::Sample collate(std::vector<troupe::data::Sample> samples) const;  // optional: for
///       samples
///     };                                                                       // whose shapes differ
///
/// Such a struct needs no base class: a job's dataset() may return it. The classes below are for datasets
/// that are chosen while the program runs, and for those that write straight into a batch's memory.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/data/random.hpp"
#include "actors/data/tensor.hpp"

namespace troupe::data {

/// Which part of a dataset. A job is asked for kValidation where it says that it has one:
/// `static constexpr bool kHasValidation = true;`.
enum class Split { kTrain, kTest, kValidation };

/// "train", "test" or "validation".
constexpr const char* split_name(Split split) {
  if (split == Split::kTrain) return "train";
  return split == Split::kTest ? "test" : "validation";
}

/// For a dataset whose files are a training and a test set: throws BadConfig for kValidation, which says how
/// to hold samples back. `dataset`: "MNIST in 'folder'".
void refuse_validation(Split split, const std::string& dataset);

/// Immutable once constructed: every method is const and safe to call from many threads. What a method throws
/// fails the job, with the sample's index.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Number of samples. It must not change while a job runs.
  virtual std::int64_t size() const = 0;
  /// Sample `index`. Chance comes from `random` alone (or LibTorch's default generator, which is seeded from
  /// it). REQUIRES: 0 <= index < size().
  virtual Sample get(std::int64_t index, Random& random) const = 0;
  /// The batch of these samples: its fields, of any shape. Nothing: every field is stacked along a new first
  /// dimension, which wants equal shapes.
  virtual std::optional<Sample> collate(const std::vector<Sample>& /*samples*/) const { return std::nullopt; }

  /// The fields of every sample, where all have the same: write() then puts a sample into the batch without
  /// a tensor in between, and collate() is not asked. Empty: only get() knows.
  virtual std::vector<FieldSpec> fields() const { return {}; }
  /// Writes the fields of sample `index`, each to its place. REQUIRES: as many places as fields(), each of
  /// its field's bytes, aligned to the element.
  virtual void write(std::int64_t index, Random& random, std::span<const std::span<std::byte>> places) const;
  /// True: get() and write() touch no other generator than `random`, and no time is spent on seeding those
  /// (a microsecond a sample).
  virtual bool uses_random_alone() const { return false; }
  /// Hint that `index` is wanted soon. A shuffled gather is bound by cache misses: fetching two samples ahead
  /// doubles its speed.
  virtual void prefetch(std::int64_t /*index*/) const {}
};

/// A dataset whose samples all have the same fields: it says which, and write() is all it needs.
class FixedDataset : public Dataset {
 public:
  Sample get(std::int64_t index, Random& random) const final;
  /// Its samples lie one after another in a batch: a dataset that collates derives from Dataset.
  std::optional<Sample> collate(const std::vector<Sample>& /*samples*/) const final { return std::nullopt; }
  std::vector<FieldSpec> fields() const override = 0;
  void write(std::int64_t index, Random& random,
             std::span<const std::span<std::byte>> places) const override = 0;
};

/// What a user writes: a size and a get.
template <class T>
concept SampleSource = requires(const T& source, std::int64_t index, Random& random) {
  { source.size() } -> std::convertible_to<std::int64_t>;
  { source.get(index, random) } -> std::convertible_to<Sample>;
};
template <class T>
concept Collates = requires(const T& source, std::vector<Sample> samples) {
  { source.collate(std::move(samples)) } -> std::convertible_to<Sample>;
};
template <class T>
concept NamesCollate = requires {
  &T::collate;
};

/// A user's source as a Dataset.
template <SampleSource T>
class SourceDataset final : public Dataset {
  static_assert(
      !NamesCollate<T> || Collates<T>,
      "this dataset's collate must be `Sample collate(std::vector<troupe::data::Sample> samples) const`");

 public:
  explicit SourceDataset(T source) : source_(std::move(source)) {}
  std::int64_t size() const override { return source_.size(); }
  Sample get(std::int64_t index, Random& random) const override { return source_.get(index, random); }
  std::optional<Sample> collate(const std::vector<Sample>& samples) const override {
    if constexpr (Collates<T>) return source_.collate(samples);
    return std::nullopt;
  }

 private:
  T source_;
};

/// A collate() that would never be called: it hides that of FixedDataset.
template <class T>
concept HidesCollate = std::derived_from<T, FixedDataset> && !requires {
  requires std::is_same_v<decltype(&T::collate), decltype(&FixedDataset::collate)>;
};

template <class T>
concept DatasetLike = std::derived_from<T, Dataset> || std::convertible_to<T, std::shared_ptr<Dataset>> ||
    (SampleSource<T>&& std::move_constructible<T>);

/// Whatever a job's dataset() returned, as one: a Dataset, a shared_ptr to one, or a struct with size and
/// get.
template <DatasetLike T>
std::shared_ptr<Dataset> share(T dataset) {
  static_assert(!HidesCollate<T>,
                "a FixedDataset has no collate(): derive from Dataset, whose get() gives samples");
  if constexpr (std::derived_from<T, Dataset>) {
    return std::make_shared<T>(std::move(dataset));
  } else if constexpr (std::convertible_to<T, std::shared_ptr<Dataset>>) {
    return dataset;
  } else {
    return std::make_shared<SourceDataset<T>>(std::move(dataset));
  }
}

}  // namespace troupe::data
