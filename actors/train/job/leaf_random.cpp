#include "actors/train/job/leaf_random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

#include "runtime/core/random.hpp"

namespace troupe::train {

void seed_default_generator(std::uint64_t seed, c10::Device device) {
  const auto reseed = [seed](at::Generator generator) {  // a reference-counted handle
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  };
  reseed(at::detail::getDefaultCPUGenerator());
  if (!device.is_cpu()) reseed(at::globalContext().defaultGenerator(device));
}

at::Tensor default_generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_default_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

std::uint64_t leaf_seed(std::uint64_t job_seed, RandomPurpose purpose, std::uint64_t global_step, int leaf) {
  const std::uint64_t stream = mix(job_seed, static_cast<std::uint64_t>(purpose));
  return mix(mix(stream, global_step), static_cast<std::uint64_t>(leaf));
}

void seed_leaf(std::uint64_t job_seed, std::uint64_t global_step, int leaf, c10::Device device) {
  seed_default_generator(leaf_seed(job_seed, RandomPurpose::kForward, global_step, leaf), device);
}

void seed_evaluation(std::uint64_t job_seed, int epoch, int piece, c10::Device device) {
  const auto of_epoch = static_cast<std::uint64_t>(epoch);
  seed_default_generator(leaf_seed(job_seed, RandomPurpose::kEvaluation, of_epoch, piece), device);
}

void seed_apply(std::uint64_t job_seed, std::uint64_t global_step, c10::Device device) {
  seed_default_generator(leaf_seed(job_seed, RandomPurpose::kApply, global_step, 0), device);
}

void seed_initial_weights(std::uint64_t job_seed) {
  seed_default_generator(leaf_seed(job_seed, RandomPurpose::kInitialWeights, 0, 0));
}

}  // namespace troupe::train
