/// What a rank finds in its environment: torchrun's variables, so that a script that torchrun starts runs
/// unchanged.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "scheduler/launch/run_events.hpp"
#include "scheduler/launch/run_spec.hpp"

namespace troupe::launch {

/// The value of a variable that this process has, or null.
using Inherited = std::function<const char*(const char* name)>;

/// NAME=VALUE each, to be set in place of what is inherited. `interface` is the one of this node's address,
/// for Gloo and NCCL; empty: they choose.
std::vector<std::string> rank_environment(const RunSpec& spec, const RankPlan& plan, std::uint32_t local_rank,
                                          const std::string& error_file, const std::string& interface,
                                          const Inherited& inherited);

/// Whether these ranks have OMP_NUM_THREADS = 1 of us: there are several, and nobody has set it.
bool sets_one_thread(const RankPlan& plan, const Inherited& inherited);

/// The environment of a child: this process's own with `changes`.
std::vector<std::string> with_changes(char** environment, const std::vector<std::string>& changes);

/// The network interface that has this numeric address; empty: none has.
std::string interface_of(const std::string& address);

}  // namespace troupe::launch
