/// Random streams of a job, as functions of its seed.
///
/// Before each leaf LibTorch's default generators (the CPU's, and that of the device) are reseeded from
/// (seed, purpose, global step, leaf), so that a leaf that runs again elsewhere draws the same dropout masks;
/// before each piece of the test set from (seed, purpose, epoch, piece), so that its figures do not depend on
/// which trainer evaluates it, nor after what.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace troupe::train {

/// What a stream is for; streams of different purposes are independent.
enum class RandomPurpose : std::uint64_t {
  kInitialWeights = 1,
  kForward = 2,
  kApply = 3,
  kLeaf = 4,
  kEvaluation = 5,
  kEvaluationLeaf = 6,
};

/// The seed of one leaf's stream in one step; of a piece of the test set in one epoch.
std::uint64_t leaf_seed(std::uint64_t job_seed, RandomPurpose purpose, std::uint64_t global_step, int leaf);

/// Reseeds the default generators for the forward of one leaf. They are the process's: nothing else may draw
/// from them between this and the end of the leaf.
void seed_leaf(std::uint64_t job_seed, std::uint64_t global_step, int leaf,
               c10::Device device = c10::DeviceType::CPU);

/// Where the CPU's default generator stands, for leaves that take turns; and back there.
at::Tensor default_generator_state();
void set_default_generator_state(const at::Tensor& state);

/// Reseeds them for the evaluation of a piece of the test set.
void seed_evaluation(std::uint64_t job_seed, int epoch, int piece, c10::Device device = c10::DeviceType::CPU);

/// Reseeds them for the apply of a step, which every trainer does after other leaves.
void seed_apply(std::uint64_t job_seed, std::uint64_t global_step, c10::Device device = c10::DeviceType::CPU);
/// Seeds LibTorch's default generator of the CPU, and that of the device if it is another one.
void seed_default_generator(std::uint64_t seed, c10::Device device = c10::DeviceType::CPU);

/// Seeds the generator from which a model draws its initial weights.
void seed_initial_weights(std::uint64_t job_seed);

}  // namespace troupe::train
