// A placement group: room for two actors on two nodes, reserved together.
#include <iostream>
#include <troupe/session.hpp>

using namespace std::chrono_literals;

struct Worker {
  int square(int n) { return n * n; }
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv, {.nodes = 2, .cpus_per_node = 2});
  const auto group = session.placement_group({{.num_cpus = 2}, {.num_cpus = 2}},
                                             {.strategy = troupe::PlacementStrategy::kStrictSpread});
  group.wait(30s);  // throws Timeout with what the group waits for
  const auto first =
      session.spawn<Worker>({.num_cpus = 2, .isolated = true, .placement_group = group, .bundle = 0});
  const auto second = session.spawn<Worker>({.num_cpus = 2, .isolated = true, .placement_group = group});
  std::cout << first.call<&Worker::square>(3).get() + second.call<&Worker::square>(4).get() << " from "
            << (first.address().node == second.address().node ? "one node" : "two nodes") << "\n";

  // No node of this cluster has 4 CPUs: the group waits, and says so.
  const auto large = session.placement_group({{.num_cpus = 4}}, {.name = "large"});
  std::cout << large.state().reason << "\n";
  large.remove();
  group.remove();
}
