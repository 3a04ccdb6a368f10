/// MNIST, or any dataset in its format, from a folder of IDX files.
#pragma once

#include <memory>
#include <string>

#include "actors/data/dataset.hpp"
#include "actors/data/idx.hpp"
#include "actors/data/pixels.hpp"

namespace troupe::data {

/// How `Idx` presents its samples.
struct IdxOptions {
  float mean = 0.0F;  ///< of a pixel in [0, 1]; MNIST: 0.1307
  float std = 1.0F;   ///< MNIST: 0.3081
  int classes = 10;   ///< a label outside [0, classes) is an error when the files are read
};

/// Images and labels of one split, in memory (47 MB for MNIST's training set). Copies share the memory.
/// Thread-safe.
class Idx final : public FixedDataset {
 public:
  /// Reads `{train,t10k}-images-idx3-ubyte[.gz]` and `{train,t10k}-labels-idx1-ubyte[.gz]` from `folder`; the
  /// plain file wins over the compressed one. Throws IoError (missing, unreadable), Error with kCorrupt
  /// (damaged, counts that differ, labels out of range, no samples) or BadConfig (a std that cannot divide).
  Idx(const std::string& folder, Split split, IdxOptions options = {});

  std::int64_t size() const override { return images_->count; }
  /// "input": float32 [1, rows, columns]; "target": int64, the class.
  std::vector<FieldSpec> fields() const override;
  bool uses_random_alone() const override { return true; }
  void write(std::int64_t index, Random& random, std::span<const std::span<std::byte>> places) const override;
  void prefetch(std::int64_t index) const override;

 private:
  std::span<const std::uint8_t> pixels(std::int64_t index) const;

  PixelNormalizer normalizer_;
  std::shared_ptr<const IdxArray> images_;
  std::shared_ptr<const IdxArray> labels_;
};

/// The names (without ".gz") of the images and labels of a split.
struct IdxStems {
  std::string images;
  std::string labels;
};
IdxStems idx_stems(Split split);

}  // namespace troupe::data
