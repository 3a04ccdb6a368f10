/// Thousands of seeds of the simulated cluster, and the proof that its invariants can be broken.
/// TROUPE_SIM_SEED=N starts elsewhere, TROUPE_SIM_COUNT=N runs more or fewer.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/simulation/cluster.hpp"

using namespace troupe::sim;

namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Outcome {
  std::string violated;
  std::uint64_t trace = 0;
  int rewinds = 0;
  int transfers = 0;
  int generations = 0;
};

Outcome simulate(std::uint64_t seed, troupe::train::Mutations mutations = {}) {
  Scenario scenario = draw_scenario(seed);
  scenario.mutations = mutations;
  Cluster cluster(std::move(scenario), false);
  cluster.run();
  return {cluster.world.violated(), cluster.world.trace_hash(), cluster.rewinds, cluster.transfers,
          cluster.generations};
}

/// The first of 1,000 seeds that finds the broken rule, or -1.
int seeds_until_found(troupe::train::Mutations mutations) {
  for (int seed = 1; seed <= 1000; ++seed) {
    const Outcome outcome = simulate(seed, mutations);
    if (!outcome.violated.empty()) {
      UNSCOPED_INFO("seed " << seed << ": " << outcome.violated);
      return seed;
    }
  }
  return -1;
}

}  // namespace

TEST_CASE("every seed keeps every invariant and ends with the undisturbed run's bits") {
  const std::uint64_t first = from_environment("TROUPE_SIM_SEED", 1);
  const std::uint64_t count = from_environment("TROUPE_SIM_COUNT", 4000);
  long rewinds = 0, transfers = 0, generations = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Outcome outcome = simulate(seed);
    if (!outcome.violated.empty()) {
      FAIL_CHECK("seed " << seed << ": " << outcome.violated << "\n  replay: bin/simulate --verbose --seed "
                         << seed);
    }
    rewinds += outcome.rewinds;
    transfers += outcome.transfers;
    generations += outcome.generations;
  }
  // The faults hit what they are for; a simulator that breaks nothing proves nothing.
  if (count >= 1000) {
    CHECK(rewinds > 50);
    CHECK(transfers > 100);
    CHECK(generations > static_cast<long>(count) * 3 / 2);
  }
}

TEST_CASE("the same seed gives the same trace, another seed another one") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) CHECK(simulate(seed).trace == simulate(seed).trace);
  CHECK(simulate(1).trace != simulate(2).trace);
}

TEST_CASE("a step that commits on the first report is found") {
  CHECK(seeds_until_found({.commit_on_first_report = true}) > 0);
}

TEST_CASE("a report of an old generation that counts is found") {
  CHECK(seeds_until_found({.accept_old_generation = true}) > 0);
}

TEST_CASE("a state that is installed before it is whole is found") {
  CHECK(seeds_until_found({.install_in_place = true}) > 0);
}
