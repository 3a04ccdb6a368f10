/// The processes that nodes start: each runs what its first frame says.
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

Worker::Worker(Cluster& in, Node& on, ProcessId as, std::int64_t cpus, const std::string& kind)
    : Hosted(in, on, as, kind + " " + to_string(as).substr(0, 4), on.host),
      is_loader(kind == "loader"),
      has_objects(kind != "trainer" && kind != "loader" && kind != "trial" && kind != "echo"),
      cpu_e4(cpus) {}

void Worker::up() {
  if (is_loader && cluster.scenario.callers > 1 && cluster.world.chance(0.5))
    session().spawn_async<CallerActor>({.here = true});
}

}  // namespace troupe::sim
