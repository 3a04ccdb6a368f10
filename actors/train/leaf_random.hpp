/// Random streams of a job, as functions of its seed.
///
/// Before each leaf LibTorch's default CPU generator is reseeded from (seed, purpose, global step, leaf), so
/// that a leaf that runs again elsewhere draws the same dropout masks.
#pragma once

#include <cstdint>

namespace troupe::train {

/// What a stream is for; streams of different purposes are independent.
enum class RandomPurpose : std::uint64_t { kInitialWeights = 1, kForward = 2, kLeaf = 4, kApply = 3 };

/// The seed of one leaf's stream in one step.
std::uint64_t leaf_seed(std::uint64_t job_seed, RandomPurpose purpose, std::uint64_t global_step, int leaf);

/// Reseeds the default CPU generator for the forward of one leaf. The generator is the process's: nothing
/// else may draw from it between this and the end of the leaf.
void seed_leaf(std::uint64_t job_seed, std::uint64_t global_step, int leaf);

/// Reseeds it for the apply of a step, which every trainer does after other leaves.
void seed_apply(std::uint64_t job_seed, std::uint64_t global_step);
/// Seeds LibTorch's default CPU generator.
void seed_default_generator(std::uint64_t seed);

/// Seeds the generator from which a model draws its initial weights.
void seed_initial_weights(std::uint64_t job_seed);

}  // namespace troupe::train
