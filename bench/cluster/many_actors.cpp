// many_actors ADDRESS N: N actors that the head knows, each with a name, and how long the head takes for a
// question meanwhile: bench_dashboard.py runs it. For each line on its input that is a number of seconds it
// prints
// {"asked": ..., "p50_us": ..., "p99_us": ...} of questions to the head one after another for that long.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "scheduler/init/init.hpp"
#include "scheduler/init/process_roles.hpp"

using namespace troupe;

namespace {

struct Nothing {};

std::string name_of(int i) {
  return "nothing-" + std::to_string(i);
}

}  // namespace

int main(int argc, char** argv) try {
  become_role_if_asked();
  if (argc != 3) {
    std::fprintf(stderr, "usage: many_actors ADDRESS N\n");
    return 2;
  }
  auto session = init(0, nullptr, {.address = argv[1]});
  const int count = std::max(1, std::atoi(argv[2]));
  std::vector<Future<ActorHandle<Nothing>>> starting;
  for (int i = 0; i < count; ++i) starting.push_back(session.spawn_async<Nothing>({.name = name_of(i)}));
  for (const auto& one : starting) (void)one.get(std::chrono::minutes(5));
  std::printf("%d actors\n", count);
  std::fflush(stdout);
  const MonotonicClock clock;
  for (double seconds = 0; std::cin >> seconds;) {
    std::vector<double> took_us;
    const Instant begin = clock.now();
    while (to_seconds(clock.now() - begin) < seconds) {
      const Instant asked = clock.now();
      (void)session.find<Nothing>(name_of(static_cast<int>(took_us.size()) % count));
      took_us.push_back(to_seconds(clock.now() - asked) * 1e6);
    }
    std::sort(took_us.begin(), took_us.end());
    std::printf("{\"asked\": %zu, \"p50_us\": %.0f, \"p99_us\": %.0f}\n", took_us.size(),
                took_us[took_us.size() / 2], took_us[took_us.size() * 99 / 100]);
    std::fflush(stdout);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "many_actors: %s\n", error.what());
  return 1;
}
