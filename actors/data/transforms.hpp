/// What happens to a sample in the loader: a small set to compose, each drawing from the sample's own Random.
///
///     auto augment = compose(random_crop(32, {.padding = 4}), random_horizontal_flip(),
///                            normalize({0.4914F, 0.4822F, 0.4465F}, {0.2470F, 0.2435F, 0.2616F}));
///     return map(Cifar10(folder, split), augment);   // of a job's dataset()
///     image = augment(image, random);                // or in a get() of your own
///
/// Images are [channels, height, width]. Order and meaning are torchvision's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/data/dataset.hpp"

namespace troupe::data {

/// A tensor in, a tensor out. Thread-safe where the function is.
using Transform = std::function<Tensor(Tensor, Random&)>;

/// uint8 pixels to float32 (pixel / 255 - mean) / std, one mean and std a channel or one for all; float32 is
/// taken to be pixel / 255 already. Throws BadConfig for a std that cannot divide, and when used for another
/// number of channels.
Transform normalize(std::vector<float> mean, std::vector<float> std);

/// What random_crop does beside cropping.
struct CropOptions {
  std::int64_t padding = 0;  ///< zeros on every side before the crop
};
/// A square of `size` from a random place, any dtype. Throws BadConfig for a size or padding that makes no
/// sense, and when used for a smaller image.
Transform random_crop(std::int64_t size, CropOptions options = {});

/// Mirrors left and right with probability `p`, any dtype.
Transform random_horizontal_flip(double p = 0.5);

/// The transforms, one after another.
Transform compose(std::vector<Transform> transforms);
template <class... T>
Transform compose(Transform first, T... rest) {
  return compose(std::vector<Transform>{std::move(first), std::move(rest)...});
}

/// A dataset with a function over each sample.
class Mapped final : public Dataset {
 public:
  using Function = std::function<Sample(Sample, Random&)>;
  Mapped(std::shared_ptr<Dataset> source, Function function)
      : source_(std::move(source)), function_(std::move(function)) {}
  std::int64_t size() const override { return source_->size(); }
  Sample get(std::int64_t index, Random& random) const override {
    return function_(source_->get(index, random), random);
  }
  std::optional<Sample> collate(const std::vector<Sample>& samples) const override {
    return source_->collate(samples);
  }
  void prefetch(std::int64_t index) const override { source_->prefetch(index); }

 private:
  std::shared_ptr<Dataset> source_;
  Function function_;
};

/// The dataset with `transform` over its field `field`, or with a function over the whole sample.
template <DatasetLike T>
Mapped map(T dataset, Mapped::Function function) {
  return Mapped(share(std::move(dataset)), std::move(function));
}
template <DatasetLike T>
Mapped map(T dataset, Transform transform, std::string field = "input") {
  return map(std::move(dataset), Mapped::Function([transform = std::move(transform),
                                                   field = std::move(field)](Sample sample, Random& random) {
               sample.set(field, transform(sample[field], random));
               return sample;
             }));
}

}  // namespace troupe::data
