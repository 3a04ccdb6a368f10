/// What a process tells of itself when somebody asks why it hangs: stacks of its threads, and what others of
/// its parts add (the flight recorder its rings).
#pragma once

#include <string>

#include "runtime/core/clock.hpp"

namespace troupe {

/// Called by dump_process, in its thread, with the folder for files. Thread-safe; a function is added once.
using Dumper = void (*)(const std::string& folder);
void add_dumper(Dumper dumper);

/// Writes stacks-PID.txt into `folder`, and calls the dumpers. Not from a signal handler.
void dump_process(const std::string& folder);

/// What each thread of this process is at, for people: its name, state and kernel wait, and the calls on its
/// stack. Those of a thread that blocks signals, or does not answer within `each`, are left out. Threads take
/// SIGRTMAX - 3 for it: a wait that signals cut short is cut short. One call at a time.
std::string describe_threads(Duration each = std::chrono::milliseconds(200));

}  // namespace troupe
