/// simulate [--seed N] [--count N] [--verbose] [--break RULE]: replays one seed, or runs many.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/simulation/cluster.hpp"

namespace {

bool break_rule(const char* rule, troupe::train::Mutations& mutations) {
  mutations.commit_on_first_report |= std::strcmp(rule, "commit") == 0;
  mutations.accept_old_generation |= std::strcmp(rule, "generation") == 0;
  mutations.install_in_place |= std::strcmp(rule, "install") == 0;
  return mutations.commit_on_first_report || mutations.accept_old_generation || mutations.install_in_place;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  bool verbose = false;
  troupe::train::Mutations mutations;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--verbose") == 0) {
      verbose = true;
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--break") == 0 && i + 1 < argc && break_rule(argv[i + 1], mutations)) {
      ++i;
    } else {
      std::fprintf(
          stderr,
          "usage: simulate [--seed N] [--count N] [--verbose] [--break commit|generation|install]\n"
          "  --break   breaks a rule on purpose: a step commits on the first report, reports of an old\n"
          "            generation count, or a state is installed before it is whole\n");
      return 2;
    }
  }
  int broken = 0;
  long commits = 0, generations = 0, transfers = 0, rewinds = 0, heads = 0, drivers = 0;
  for (std::uint64_t s = seed; s < seed + count; ++s) {
    troupe::sim::Scenario scenario = troupe::sim::draw_scenario(s);
    scenario.mutations = mutations;
    troupe::sim::Cluster cluster(std::move(scenario), verbose);
    cluster.run();
    const bool bad = !cluster.world.violated().empty();
    broken += bad ? 1 : 0;
    commits += cluster.commits;
    generations += cluster.generations;
    transfers += cluster.transfers;
    rewinds += cluster.rewinds;
    heads += cluster.head_starts;
    drivers += cluster.driver_starts;
    if (count == 1 || bad) {
      std::printf("seed %llu: %s; %llu events, %.1f s, %d commits, %d generations, trace %s\n",
                  static_cast<unsigned long long>(s), bad ? cluster.world.violated().c_str() : "good",
                  static_cast<unsigned long long>(cluster.world.events()),
                  troupe::to_seconds(cluster.world.now()), cluster.commits, cluster.generations,
                  troupe::to_hex(cluster.world.trace_hash()).c_str());
    }
  }
  std::printf("%ld commits, %ld generations, %ld states received, %ld rewinds, %ld heads, %ld drivers\n",
              commits, generations, transfers, rewinds, heads, drivers);
  std::printf("%d of %llu seeds broke an invariant\n", broken, static_cast<unsigned long long>(count));
  return broken == 0 ? 0 : 1;
}
