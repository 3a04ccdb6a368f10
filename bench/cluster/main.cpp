// The head's machine at scale: what it says, writes and decides, and the time an event takes it.
//   bench_cluster [nodes...]     default: 100 1000 10000
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/scheduler/cluster/scale_run.hpp"

using troupe::test::ScaleCounts;
using troupe::test::ScaleRun;

int main(int argc, char** argv) {
  std::vector<std::uint64_t> sizes{100, 1000, 10'000};
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.starts_with('-')) {
    const bool help = first == "--help" || first == "-h";
    std::fprintf(help ? stdout : stderr,
                 "usage: bench_cluster [NODES...]   10 to 100000 each [default: 100 1000 10000]\n");
    return help ? 0 : 2;
  }
  if (argc > 1) sizes.clear();
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  std::printf("%7s  %-18s %9s %9s %12s %7s %9s %8s %9s\n", "nodes", "phase", "events", "messages", "bytes",
              "syncs", "records", "placed", "us/event");
  for (const std::uint64_t nodes : sizes) {
    if (nodes < 10 || nodes > 100'000) {
      std::fprintf(stderr, "bench_cluster: %llu nodes are not between 10 and 100000\n",
                   static_cast<unsigned long long>(nodes));
      return 2;
    }
    const auto phases = ScaleRun(nodes).run();
    for (std::size_t i = 0; i < phases.size(); ++i) {
      const ScaleCounts& c = phases[i];
      std::printf("%7llu  %-18s %9llu %9llu %12llu %7llu %9llu %8llu %9.2f\n",
                  static_cast<unsigned long long>(nodes), ScaleRun::kNames[i],
                  static_cast<unsigned long long>(c.events), static_cast<unsigned long long>(c.messages),
                  static_cast<unsigned long long>(c.bytes), static_cast<unsigned long long>(c.batches),
                  static_cast<unsigned long long>(c.changes), static_cast<unsigned long long>(c.placed),
                  c.seconds / static_cast<double>(c.events) * 1e6);
    }
  }
}
