// Which nodes are asked for their processes, and whose those are.
#include "scheduler/cli/processes.hpp"

#include <catch2/catch.hpp>

using namespace troupe;

// The processes of a node that drained were not shown: they go on until its grace time is over.
TEST_CASE("nodes that drain or leave have processes still") {
  wire::NodeStatus node;
  for (const char* state : {"alive", "draining", "leaving"}) {
    node.state = state;
    CHECK(cli::may_have_processes(node));
  }
  for (const char* state : {"expected", "silent"}) {
    node.state = state;
    CHECK_FALSE(cli::may_have_processes(node));
  }
  node.state = "alive";
  node.node.gateway = true;
  CHECK_FALSE(cli::may_have_processes(node));
}
