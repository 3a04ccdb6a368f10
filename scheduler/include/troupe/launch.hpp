/// Ranks of a process group from within a program: a function of it in several processes, with the
/// environment that init_process_group("native", "env://") reads. Programs of their own are started by
/// `troupe run` (docs/launch.md).
#pragma once

#include "scheduler/init/process_roles.hpp"
#include "scheduler/launch/spawn.hpp"
#include "troupe/error.hpp"
