/// What the driver, trainers and loaders of one run know in common. Plain aggregates: they travel as
/// arguments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/checkpoint/manifest.hpp"
#include "actors/checkpoint/sha256.hpp"
#include "actors/data/dataset.hpp"
#include "actors/data/sampler.hpp"
#include "actors/train/not_finite.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::train {

/// What trainers share out instead of keeping all of it each. docs/sharding.md.
enum class Shard : std::uint8_t {
  kNothing,
  kOptimizer,   ///< what optimizers keep for parameters: ZeRO-1
  kGradients,   ///< gradients, too, and between steps parameters: ZeRO-2
  kParameters,  ///< parameters, too, of which a unit at a time is whole: ZeRO-3
};
/// Whether parameters are in units: between steps no trainer of several has all of them.
inline bool has_units(Shard shard) {
  return shard == Shard::kGradients || shard == Shard::kParameters;
}

struct Sharding {
  Shard what = Shard::kNothing;
  std::int64_t min_num_params = 0;   ///< of a unit, where there are any (has_units)
  std::vector<std::string> units{};  ///< by name; the same
  bool prefetch = false;             ///< the next unit comes while one computes; the same
};

/// Fixed from the start of a run. All of it but the run's name is the job's identity or how it is kept.
struct RunSettings {
  std::uint64_t job_type = 0;  ///< in the job registry
  wire::Bytes job;             ///< the user's struct, encoded
  std::string job_text;        ///< the same for people
  std::string run;             ///< unique a run: names its shared memory
  wire::Bytes key;             ///< 32 secret bytes that trainers prove to each other between machines
  int logical_ranks = 1;
  std::int64_t micro_batch = 1;
  std::uint64_t seed = 0;
  int epochs = 1;
  std::int64_t max_steps = 0;           ///< instead of epochs; 0: these
  bool evaluates = false;               ///< and trains no step
  std::int64_t evaluation_samples = 0;  ///< of each set the first so many are evaluated; 0: all
  bool find_unused_parameters = false;
  bool exact = true;              ///< the same bits whatever happens
  bool rehearse = true;           ///< some steps on a fresh copy of the state, too
  std::string checkpoint_folder;  ///< empty: no checkpoints
  std::string folder_lock;        ///< what its lock says (FolderLock::who); empty: it has none
  /// A snapshot's optimizer options give way to those that the job's struct sets: it was taken of another
  /// one.
  bool new_options = false;
  double group_timeout_s = 150;  ///< Deadlines::collective
  int threads = 1;               ///< intra-op threads of a trainer
  bool encrypt_data_plane = false;
  double trainer_gpus = 0;  ///< that each trainer holds, and computes on
  Sharding sharding;
  NotFinite not_finite = NotFinite::kGoOn;
};

/// What a loader knows about the data.
struct DataInfo {
  std::int64_t train_size = 0;
  std::int64_t test_size = 0;
  data::Sampling sampling;  ///< a trainer gets it without the weights: it deals with steps alone
  std::int64_t steps_per_epoch = 0;
  std::int64_t test_piece = 1;         ///< samples that are evaluated together; the same for any world size
  std::uint64_t batch_bytes = 0;       ///< of the first training batch; others may be larger
  std::uint64_t test_batch_bytes = 0;  ///< of the first piece of either set; the same
  std::uint64_t sampling_hash = 0;     ///< of the sampler; part of the job's identity, as are the sizes
  std::int64_t validation_size = 0;    ///< 0: the job has no validation set
  std::int64_t most_evaluated = 0;     ///< samples of each set; 0: all

  /// What is evaluated together: samples [begin, end) of a set.
  struct Piece {
    data::Split split = data::Split::kTest;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::int64_t evaluated(std::int64_t size) const {
    return most_evaluated > 0 ? std::min(size, most_evaluated) : size;
  }
  std::int64_t pieces_of(std::int64_t size) const { return (evaluated(size) + test_piece - 1) / test_piece; }
  std::int64_t test_pieces() const { return pieces_of(test_size); }
  std::int64_t validation_pieces() const { return pieces_of(validation_size); }
  /// The pieces of the test set come first, then those of the validation set.
  Piece piece(std::int64_t number) const {
    const bool test = number < test_pieces();
    const std::int64_t begin = (test ? number : number - test_pieces()) * test_piece;
    return {test ? data::Split::kTest : data::Split::kValidation, begin,
            std::min(begin + test_piece, evaluated(test ? test_size : validation_size))};
  }
};

/// Steps of the whole job.
inline std::int64_t total_steps(const RunSettings& settings, std::int64_t steps_per_epoch) {
  if (settings.evaluates) return 0;
  return settings.max_steps > 0 ? settings.max_steps : settings.epochs * steps_per_epoch;
}

/// What a checkpoint of the run carries, and is held against.
inline checkpoint::JobIdentity job_identity(const RunSettings& settings, const DataInfo& info = {},
                                            const std::string& numerics = {}) {
  return {.logical_ranks = static_cast<std::uint64_t>(settings.logical_ranks),
          .seed = settings.seed,
          .micro_batch = static_cast<std::uint64_t>(settings.micro_batch),
          .job = settings.job_text,
          .job_sha256 = checkpoint::sha256_hex(settings.job),
          .train_size = static_cast<std::uint64_t>(info.train_size),
          .test_size = static_cast<std::uint64_t>(info.test_size),
          .numerics = numerics,
          .sampling = info.sampling_hash == 0 ? "" : to_hex(info.sampling_hash),
          .validation_size = static_cast<std::uint64_t>(info.validation_size)};
}

/// The stream of what a sample draws. Samples that are evaluated draw the same in every epoch.
inline data::RandomKey random_key(const RunSettings& settings, data::Split split, std::uint64_t epoch) {
  const bool train = split == data::Split::kTrain;
  return {mix(settings.seed, static_cast<std::uint64_t>(split)), train ? epoch : 0};
}

inline data::SamplerOptions sampler_options(const RunSettings& settings, const DataInfo& info) {
  return {.dataset_size = info.train_size,
          .logical_ranks = settings.logical_ranks,
          .batch = settings.micro_batch,
          .seed = settings.seed,
          .sampling = info.sampling};
}

}  // namespace troupe::train
