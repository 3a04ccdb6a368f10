#include "actors/data/subset.hpp"

#include <cmath>
#include <string>

#include "actors/data/sampler.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {
namespace {

[[noreturn]] void refuse(std::int64_t size, std::string why, std::string todo) {
  throw BadConfig("cannot split a dataset of " + std::to_string(size) + " samples", std::move(why),
                  std::move(todo));
}

}  // namespace

Subset::Subset(Shared whole, std::vector<std::int64_t> indices) : whole_(std::move(whole.whole)) {
  const std::int64_t size = whole_->size();
  for (const std::int64_t index : indices) {
    if (index >= 0 && index < size) continue;
    throw BadConfig("cannot make a subset of " + std::to_string(size) + " samples",
                    "it names sample " + std::to_string(index), "use indices from 0 to the size - 1");
  }
  indices_ = std::make_shared<const std::vector<std::int64_t>>(std::move(indices));
}

std::vector<std::vector<std::int64_t>> split_indices(std::int64_t size,
                                                     const std::vector<std::int64_t>& lengths,
                                                     std::uint64_t seed) {
  if (size < 0 || size > kMaxDatasetSize)
    refuse(size, "it is outside of 0 to " + std::to_string(kMaxDatasetSize), "split a smaller one");
  std::int64_t left = size;
  for (const std::int64_t length : lengths) {
    if (length < 0 || length > left) left = -1;
    if (left < 0) break;
    left -= length;
  }
  if (left != 0) {
    std::string all;
    for (const std::int64_t length : lengths) all += (all.empty() ? "" : " + ") + std::to_string(length);
    refuse(size, "the lengths are " + (all.empty() ? "none" : all), "use lengths that add up to the size");
  }
  const auto order = randperm(size, seed);
  std::vector<std::vector<std::int64_t>> parts;
  auto at = order.begin();
  for (const std::int64_t length : lengths) {
    parts.emplace_back(at, at + length);
    at += length;
  }
  return parts;
}

std::vector<std::vector<std::int64_t>> split_indices(std::int64_t size, const std::vector<double>& fractions,
                                                     std::uint64_t seed) {
  double sum = 0;
  for (const double fraction : fractions) {
    if (!(fraction >= 0 && fraction <= 1))  // a NaN is refused, too
      refuse(size, "a fraction is " + std::to_string(fraction), "use fractions of 0 to 1");
    sum += fraction;
  }
  constexpr double kRounding = 1e-6;
  if (std::abs(sum - 1) > kRounding)
    refuse(size, "the fractions add up to " + std::to_string(sum), "use fractions that add up to 1");
  std::vector<std::int64_t> lengths;
  std::int64_t left = size;
  for (const double fraction : fractions) {
    lengths.push_back(static_cast<std::int64_t>(std::floor(static_cast<double>(size) * fraction)));
    left -= lengths.back();
  }
  for (std::size_t i = 0; left > 0; i = (i + 1) % lengths.size(), --left) ++lengths[i];
  return split_indices(size, lengths, seed);
}

}  // namespace troupe::data
