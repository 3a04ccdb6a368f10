#include "actors/data/dataset.hpp"

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {

void refuse_validation(Split split, const std::string& dataset) {
  if (split != Split::kValidation) return;
  throw BadConfig(dataset + " has no validation set", "its files are a training and a test set",
                  "hold some of the training set back: troupe::data::random_split(train, {0.9, 0.1}, seed)");
}

void Dataset::write(std::int64_t /*index*/, Random& /*random*/,
                    std::span<const std::span<std::byte>> /*places*/) const {
  TROUPE_ASSERT(false, "a dataset that names its fields() has a write()");
}

Sample FixedDataset::get(std::int64_t index, Random& random) const {
  const auto specs = fields();
  Sample sample;
  std::vector<std::span<std::byte>> places;
  for (const auto& spec : specs) {
    auto tensor = Tensor::uninitialised(spec.dtype, spec.shape);
    places.push_back(tensor.fill_bytes());
    sample.set(spec.name, std::move(tensor));
  }
  write(index, random, places);
  return sample;
}

}  // namespace troupe::data
