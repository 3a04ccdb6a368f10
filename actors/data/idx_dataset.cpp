#include "actors/data/idx_dataset.hpp"

#include <utility>

#include "actors/data/data_file.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::data {
namespace {

IdxArray load(const std::string& folder, const std::string& stem, IdxKind kind) {
  const std::string path = find_data_file(folder, stem);
  if (path.empty()) {
    throw_error({ErrorCode::kIo, "cannot read the dataset in '" + folder + "'",
                 "neither " + stem + " nor " + stem + ".gz is there",
                 "give the folder that holds MNIST's four IDX files"});
  }
  return read_idx(path, kind).value();
}

}  // namespace

IdxStems idx_stems(Split split) {
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  return {prefix + "-images-idx3-ubyte", prefix + "-labels-idx1-ubyte"};
}

Idx::Idx(const std::string& folder, Split split, IdxOptions options)
    : normalizer_(Normalize{options.mean, options.std}) {
  refuse_validation(split, "the IDX dataset in '" + folder + "'");
  const IdxStems stems = idx_stems(split);
  auto images = load(folder, stems.images, IdxKind::kImages);
  auto labels = load(folder, stems.labels, IdxKind::kLabels);
  const auto refuse = [&](std::string why) {
    throw_error({ErrorCode::kCorrupt,
                 "cannot use the " + std::string(split_name(split)) + " set in '" + folder + "'",
                 std::move(why), "download the files again, or give another folder"});
  };
  if (images.count != labels.count) {
    refuse(std::to_string(images.count) + " images but " + std::to_string(labels.count) + " labels");
  }
  if (images.data.empty()) refuse("it holds no pixels");
  for (std::size_t i = 0; i < labels.data.size(); ++i) {
    if (labels.data[i] >= options.classes) {
      refuse("label " + std::to_string(labels.data[i]) + " of sample " + std::to_string(i) +
             " is outside [0, " + std::to_string(options.classes) + ")");
    }
  }
  images_ = std::make_shared<const IdxArray>(std::move(images));
  labels_ = std::make_shared<const IdxArray>(std::move(labels));
}

std::vector<FieldSpec> Idx::fields() const {
  return image_fields({1, images_->rows, images_->columns});
}

std::span<const std::uint8_t> Idx::pixels(std::int64_t index) const {
  TROUPE_ASSERT(index >= 0 && index < size(), "a sample index lies within the dataset");
  const std::size_t bytes = std::size_t{images_->rows} * images_->columns;
  return std::span(images_->data).subspan(static_cast<std::size_t>(index) * bytes, bytes);
}

void Idx::write(std::int64_t index, Random& /*random*/, std::span<const std::span<std::byte>> places) const {
  normalizer_.apply(pixels(index), input_place(places));
  write_target(places, labels_->data[static_cast<std::size_t>(index)]);
}

void Idx::prefetch(std::int64_t index) const {
  constexpr std::size_t kCacheLine = 64;
  const auto sample = pixels(index);
  for (std::size_t at = 0; at < sample.size(); at += kCacheLine) __builtin_prefetch(sample.data() + at);
}

}  // namespace troupe::data
