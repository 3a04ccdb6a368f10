/// The stub model: a TrainState of a few words, gradients that are hashes, folded on the leaf tree by a
/// function that does not commute. A lost step, a wrong order, other samples or half a state change the hash.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "actors/train/engine/state_parts.hpp"
#include "actors/train/plan.hpp"

namespace troupe::sim {

struct TrainState {
  static constexpr int kWords = 4;
  std::array<std::uint64_t, kWords> words{};
  bool operator==(const TrainState&) const = default;
  /// Views of the words.
  std::vector<train::StatePart> parts() const;
  void apply(std::int64_t step, std::uint64_t gradient);
};

TrainState initial_state(std::uint64_t seed);
/// What one logical rank adds in a step.
std::uint64_t gradient(const TrainState& state, std::int64_t step, int leaf, std::uint64_t indices_hash);
/// The partial sums of an interval, from one gradient a leaf (the first is interval.begin's).
std::vector<std::uint64_t> partial_sums(const std::vector<std::uint64_t>& gradients,
                                        collectives::LeafInterval interval, int leaves);
/// The sum of all ranks' partials, which are given left to right.
std::uint64_t sum_partials(std::vector<std::uint64_t> partials,
                           const std::vector<collectives::LeafInterval>& nodes, int leaves);
/// The states of an undisturbed run: one a number of steps, 0 to all. `indices`: the hashes of what each leaf
/// of each step uses.
std::vector<TrainState> reference_run(std::uint64_t seed,
                                      const std::vector<std::vector<std::uint64_t>>& indices);
/// How many of test samples [begin, end) the state gets right.
std::int64_t evaluate(const TrainState& state, std::int64_t begin, std::int64_t end);

}  // namespace troupe::sim
