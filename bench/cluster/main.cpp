// The head's machine at scale: what it says, writes and decides, and the time an event takes it; and how fast
// placement groups are decided.
//   bench_cluster [--json FILE] [nodes...]     default: 100 1000 10000
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/cluster/decisions.hpp"
#include "tests/scheduler/cluster/scale_run.hpp"

using troupe::test::ScaleCounts;
using troupe::test::ScaleRun;

namespace {

/// One object a line, as bench/README.md has it.
bool write_json(const std::string& path, const std::vector<troupe::bench::DecisionRow>& rows) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  for (const auto& row : rows) {
    std::fprintf(file,
                 "{\"bench\": \"cluster\", \"case\": \"%s, %llu nodes\", \"ours\": %.0f, \"peer\": null, "
                 "\"peer_name\": null, \"ratio\": null, \"unit\": \"bundles/s\", \"p50_us\": %.1f, "
                 "\"p99_us\": %.1f}\n",
                 row.name.c_str(), static_cast<unsigned long long>(row.nodes), row.bundles_a_second,
                 row.p50_us, row.p99_us);
  }
  return std::fclose(file) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::uint64_t> sizes{100, 1000, 10'000};
  std::string json;
  if (argc > 2 && std::string(argv[1]) == "--json") {
    json = argv[2];
    argc -= 2;
    argv += 2;
  }
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.starts_with('-')) {
    const bool help = first == "--help" || first == "-h";
    std::fprintf(
        help ? stdout : stderr,
        "usage: bench_cluster [--json FILE] [NODES...]   10 to 100000 each [default: 100 1000 10000]\n");
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
  std::vector<troupe::bench::DecisionRow> rows;
  for (const std::uint64_t nodes : sizes) {
    for (auto& row : troupe::bench::decide_by_planner(nodes)) rows.push_back(std::move(row));
    for (const std::size_t outstanding : {1U, 1000U})
      rows.push_back(troupe::bench::decide_by_head(nodes, outstanding));
  }
  std::printf("\n%7s  %-36s %12s %10s %10s %12s %12s %12s\n", "nodes", "groups of 8 bundles", "bundles/s",
              "p50 us", "p99 us", "disk p50 us", "disk p99 us", "loop p99 us");
  for (const auto& row : rows) {
    std::printf("%7llu  %-36s %12.0f %10.1f %10.1f", static_cast<unsigned long long>(row.nodes),
                row.name.c_str(), row.bundles_a_second, row.p50_us, row.p99_us);
    if (row.write_p50_us > 0)
      std::printf(" %12.1f %12.1f %12.1f", row.write_p50_us, row.write_p99_us, row.loop_p99_us);
    std::printf("\n");
  }
  if (!json.empty() && !write_json(json, rows)) {
    std::fprintf(stderr, "bench_cluster: cannot write %s\n", json.c_str());
    return 1;
  }
}
