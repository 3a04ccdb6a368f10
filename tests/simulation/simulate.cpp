/// simulate --seed N [--verbose] [--count N]: replays one seed, or runs many.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/simulation/cluster.hpp"

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  bool verbose = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--verbose") == 0) {
      verbose = true;
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: simulate [--seed N] [--count N] [--verbose]\n");
      return 2;
    }
  }
  int broken = 0;
  for (std::uint64_t s = seed; s < seed + count; ++s) {
    troupe::sim::Cluster cluster(troupe::sim::draw_scenario(s), verbose);
    cluster.run();
    const bool bad = !cluster.world.violated().empty();
    broken += bad ? 1 : 0;
    if (count == 1 || bad) {
      std::printf("seed %llu: %s; %llu events, %.1f s, %d commits, %d generations, trace %s\n",
                  static_cast<unsigned long long>(s), bad ? cluster.world.violated().c_str() : "good",
                  static_cast<unsigned long long>(cluster.world.events()),
                  troupe::to_seconds(cluster.world.now()), cluster.commits, cluster.generations,
                  troupe::to_hex(cluster.world.trace_hash()).c_str());
    }
  }
  std::printf("%d of %llu seeds broke an invariant\n", broken, static_cast<unsigned long long>(count));
  return broken == 0 ? 0 : 1;
}
