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

// Workers that had light actors alone were no job's: the head knows of no such actors.
TEST_CASE("a job's processes are its program and its workers") {
  wire::StatusAnswer all;
  cluster::JobRecord job;
  job.job = {7};
  job.submission = "job-1";
  all.jobs.push_back(job);
  node::ProcessStatus program{1, "program of job job-1", "job-1"}, worker{2, "worker"}, other{3, "worker"};
  worker.job = {7};
  other.job = {8};
  const NodeId node{1};
  const auto own = cli::processes_of("job-1", all, {{node, program}, {node, worker}, {node, other}});
  REQUIRE(own.size() == 2);
  CHECK(own[0].status.pid == 1);
  CHECK(own[1].status.pid == 2);
}
