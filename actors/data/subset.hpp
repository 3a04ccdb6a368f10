/// The first samples of another dataset: for trials that should take seconds.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "actors/data/dataset.hpp"

namespace troupe::data {

/// Thread-safe where the whole is.
class Subset final : public Dataset {
 public:
  /// The first `size` samples of `whole`, or all of them if there are fewer. REQUIRES: size >= 1.
  Subset(std::shared_ptr<Dataset> whole, std::int64_t size)
      : whole_(std::move(whole)), size_(std::min(size, whole_->size())) {}

  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index, Random& random) const override { return whole_->get(index, random); }
  std::optional<Sample> collate(const std::vector<Sample>& samples) const override {
    return whole_->collate(samples);
  }
  std::vector<FieldSpec> fields() const override { return whole_->fields(); }
  void write(std::int64_t index, Random& random,
             std::span<const std::span<std::byte>> places) const override {
    whole_->write(index, random, places);
  }
  void prefetch(std::int64_t index) const override { whole_->prefetch(index); }

 private:
  std::shared_ptr<Dataset> whole_;
  std::int64_t size_;
};

}  // namespace troupe::data
