/// Samples that lie one after another and can be read from named places only: lines of a file, records of a
/// log.
///
///     struct Records {
///       /// Reads the sample at `cursor` into *sample (null: passes it over), and moves the cursor behind
///       it.
///       /// False at the end. 0 is the first sample's cursor; all others are what read() made of it.
///       bool read(std::uint64_t& cursor, troupe::data::Sample* sample) const;
///     };
///     return indexed(Records{...});   // of a job's dataset()
///
/// PyTorch's IterableDataset, but for one thing: since a cursor names a place, any loader can go on from it,
/// so a fault, a resume or another number of loaders changes no sample.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actors/data/dataset.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::data {

/// What a user writes: a read from a cursor. Thread-safe, and the same for one cursor always.
template <class T>
concept Stream = requires(const T& stream, std::uint64_t& cursor, Sample* sample) {
  { stream.read(cursor, sample) } -> std::same_as<bool>;
};

struct IndexOptions {
  std::int64_t every = 64;        ///< a cursor is kept for so many samples: 8 bytes each
  std::int64_t most_samples = 0;  ///< the dataset ends after so many; 0: at the stream's end
};

/// A stream as a dataset. Making it passes over the stream once. Afterwards a sample is found by its place:
/// read in order (data::sequential()) each sample is read once; shuffled, up to `every` - 1 others are passed
/// over before it.
class Indexed final : public Dataset {
 public:
  using Read = std::function<bool(std::uint64_t& cursor, Sample* sample)>;
  /// Throws BadConfig for an empty stream, options that make no sense, or a stream whose cursor stands still.
  Indexed(Read read, IndexOptions options);

  std::int64_t size() const override { return size_; }
  /// Throws BadConfig when the stream is shorter than it was.
  Sample get(std::int64_t index, Random& random) const override;

 private:
  /// Where a sample begins.
  struct Place {
    std::int64_t index = 0;
    std::uint64_t cursor = 0;
  };
  Place nearest(std::int64_t index) const;
  void remember(Place place) const;

  Read read_;
  std::int64_t every_;
  std::int64_t size_ = 0;
  std::vector<std::uint64_t> marks_;  ///< cursor of each every_-th sample

  struct Readers {
    std::mutex mutex;
    std::vector<Place> places;  ///< where they stand, the newest last
  };
  std::unique_ptr<Readers> readers_ = std::make_unique<Readers>();
};

template <Stream T>
Indexed indexed(T stream, IndexOptions options = {}) {
  auto shared = std::make_shared<const T>(std::move(stream));
  return {[shared](std::uint64_t& cursor, Sample* sample) { return shared->read(cursor, sample); }, options};
}

/// The lines of a text file, without their ends, as {"text": uint8 [bytes]}: a stream.
///
///     return map(indexed(Lines("reviews.txt")), [](Sample line, Random&) -> Sample { ... });
class Lines {
 public:
  /// Throws IoError for a file that cannot be read.
  explicit Lines(const std::string& path);
  /// Throws IoError, and BadConfig for a line above 16 MiB.
  bool read(std::uint64_t& cursor, Sample* sample) const;

 private:
  std::string path_;
  std::shared_ptr<const UniqueFd> file_;
};

}  // namespace troupe::data
