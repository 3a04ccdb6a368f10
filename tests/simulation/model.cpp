#include "tests/simulation/model.hpp"

#include "runtime/core/random.hpp"

namespace troupe::sim {

using collectives::LeafInterval;

namespace {

std::uint64_t add(std::uint64_t left, std::uint64_t right) {
  return mix(left, right);
}

std::uint64_t sum_inside(const std::vector<std::uint64_t>& gradients, int first, LeafInterval node) {
  if (node.size() == 1) return gradients[node.begin - first];
  const int middle = node.begin + collectives::split_point(node.size());
  return add(sum_inside(gradients, first, {node.begin, middle}),
             sum_inside(gradients, first, {middle, node.end}));
}

}  // namespace

std::vector<train::StatePart> TrainState::parts() const {
  std::vector<train::StatePart> all;
  for (const std::uint64_t& word : words) {
    all.push_back({"word" + std::to_string(all.size()),
                   checkpoint::DType::kU64,
                   {1},
                   std::as_bytes(std::span(&word, 1))});
  }
  return all;
}

void TrainState::apply(std::int64_t step, std::uint64_t gradient) {
  for (std::uint64_t& word : words) word = mix(word, gradient ^ static_cast<std::uint64_t>(step));
}

TrainState initial_state(std::uint64_t seed) {
  TrainState state;
  for (int i = 0; i < TrainState::kWords; ++i) state.words[i] = mix(seed, i);
  return state;
}

std::uint64_t gradient(const TrainState& state, std::int64_t step, int leaf, std::uint64_t indices_hash) {
  std::uint64_t all = mix(step, mix(leaf, indices_hash));
  for (const std::uint64_t word : state.words) all = mix(all, word);
  return all;
}

std::vector<std::uint64_t> partial_sums(const std::vector<std::uint64_t>& gradients, LeafInterval interval,
                                        int leaves) {
  std::vector<std::uint64_t> partials;
  for (const LeafInterval node : collectives::canonical_nodes(interval, leaves)) {
    partials.push_back(sum_inside(gradients, interval.begin, node));
  }
  return partials;
}

std::uint64_t sum_partials(std::vector<std::uint64_t> partials, const std::vector<LeafInterval>& nodes,
                           int leaves) {
  for (const auto [into, from] : collectives::fold_plan(nodes, leaves)) {
    partials[into] = add(partials[into], partials[from]);
  }
  return partials.front();
}

std::vector<TrainState> reference_run(std::uint64_t seed,
                                      const std::vector<std::vector<std::uint64_t>>& indices) {
  TrainState state = initial_state(seed);
  std::vector<TrainState> states{state};
  for (const auto& leaves : indices) {
    const auto step = static_cast<std::int64_t>(states.size()) - 1;
    std::vector<std::uint64_t> gradients;
    for (const std::uint64_t used : leaves)
      gradients.push_back(gradient(state, step, static_cast<int>(gradients.size()), used));
    state.apply(step, sum_inside(gradients, 0, {0, static_cast<int>(leaves.size())}));
    states.push_back(state);
  }
  return states;
}

std::int64_t evaluate(const TrainState& state, std::int64_t begin, std::int64_t end) {
  std::int64_t right = 0;
  for (std::int64_t sample = begin; sample < end; ++sample)
    right += static_cast<std::int64_t>(mix(state.words[0], sample) & 1);
  return right;
}

}  // namespace troupe::sim
