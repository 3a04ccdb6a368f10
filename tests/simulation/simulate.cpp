/// simulate [--seed N] [--count N] [--verbose] [--break RULE]: replays one seed, or runs many.
/// A seed that breaks something tells its story: the last events, with when, who and what.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/simulation/rules.hpp"
#include "tests/simulation/totals.hpp"

namespace {

using troupe::sim::kBreakableRules;
using troupe::sim::Scenario;

bool break_rule(const char* name, Scenario& scenario) {
  const auto rule = std::find_if(kBreakableRules.begin(), kBreakableRules.end(),
                                 [name](const auto& one) { return std::strcmp(one.name, name) == 0; });
  if (rule == kBreakableRules.end()) return false;
  rule->break_in(scenario);
  return true;
}

void usage(std::FILE* to) {
  std::fprintf(to,
               "usage: simulate [--seed N] [--count N] [--verbose] [--sweeps] [--break RULE]\n"
               "  --verbose  tells what happens while it does; a seed that breaks something tells its "
               "last events anyway\n"
               "  --sweeps   the program sweeps, instead of training one job\n"
               "  --break    breaks a rule on purpose:\n");
  for (const auto& rule : kBreakableRules) std::fprintf(to, "    %-11s %s\n", rule.name, rule.broken);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  bool verbose = false;
  bool sweeps = false;
  Scenario broken_rules;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--verbose") == 0) {
      verbose = true;
    } else if (std::strcmp(argv[i], "--sweeps") == 0) {
      sweeps = true;
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--break") == 0 && i + 1 < argc &&
               break_rule(argv[i + 1], broken_rules)) {
      ++i;
    } else {
      const bool help = std::strcmp(argv[i], "--help") == 0 || std::strcmp(argv[i], "-h") == 0;
      usage(help ? stdout : stderr);
      return help ? 0 : 2;
    }
  }
  int broken = 0;
  troupe::sim::Totals all;
  for (std::uint64_t s = seed; s < seed + count; ++s) {
    troupe::sim::Scenario scenario =
        sweeps ? troupe::sim::draw_sweep_scenario(s) : troupe::sim::draw_scenario(s);
    scenario.mutations = broken_rules.mutations;
    scenario.floor = broken_rules.floor;
    troupe::sim::Cluster cluster(std::move(scenario), verbose);
    cluster.run();
    const bool bad = !cluster.world.violated().empty();
    broken += bad ? 1 : 0;
    all.add(cluster);
    if (bad) {
      std::printf("\nThe last events of seed %llu:\n", static_cast<unsigned long long>(s));
      for (const std::string& line : cluster.world.story()) std::printf("%s\n", line.c_str());
    }
    if (count == 1 || bad) {
      std::printf("seed %llu: %s; %llu events, %.1f s, %d commits, %d generations, trace %s\n",
                  static_cast<unsigned long long>(s), bad ? cluster.world.violated().c_str() : "good",
                  static_cast<unsigned long long>(cluster.world.events()),
                  troupe::to_seconds(cluster.world.now()), cluster.commits, cluster.generations,
                  troupe::to_hex(cluster.world.trace_hash()).c_str());
    }
  }
  std::printf(
      "%ld commits, %ld generations, %ld states received, %ld steps followed, %ld rewinds, %ld heads, %ld "
      "drivers\n",
      all.commits, all.generations, all.transfers, all.followed, all.rewinds, all.heads, all.drivers);
  std::printf("%ld calls answered, %ld failed, %ld deaths told, %ld actors started again\n", all.answers,
              all.calls_failed, all.deaths_told, all.restarted);
  std::printf("%ld lives went on from a saved state\n", all.lives_with_state);
  std::printf("%ld placement groups got their room, %ld were removed; %ld detached actors were taken over\n",
              all.groups_ready, all.groups_removed, all.taken_over);
  std::printf(
      "%ld objects put, %ld values read, %ld pieces written to disk, %ld refused; %ld found no room, %ld "
      "were "
      "lost\n",
      all.objects, all.values_read, all.written, all.writes_refused, all.no_room, all.lost);
  std::printf(
      "%ld copies between nodes, %ld failed, %ld were hit, %ld windows were full; %ld came directly, %ld "
      "connections broke\n",
      all.copies, all.copies_failed, all.copies_hit, all.full_windows, all.direct, all.direct_broken);
  std::printf(
      "%ld objects computed, %ld tasks answered, %ld begun again, %ld cancelled; %ld crashes; %ld times one "
      "left its CPUs to others, %ld workers were given back for others\n",
      all.computed, all.tasks_answered, all.tasks_again, all.tasks_cancelled, all.crashes, all.tasks_waited,
      all.turns);
  std::printf("%d of %llu seeds broke an invariant\n", broken, static_cast<unsigned long long>(count));
  return broken == 0 ? 0 : 1;
}
