/// Submitted jobs: programs that a running cluster's nodes start, watch and keep the output of.
///
///   troupe::JobClient jobs({.address = "10.0.0.1:6380"});
///   auto id = jobs.submit({.program = "/opt/mnist", .args = {"--trainers", "2"}, .num_cpus = 2, .retries =
///   3}); std::cout << jobs.wait(id).exit_code << "\n";
///
/// Link troupe::runtime (docs/use-it.md); docs/jobs.md has the whole of it.
#pragma once

#include "scheduler/jobs/job_client.hpp"
