/// Ranks of a process group for tests: as threads, or as forked processes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/native/native_group.hpp"

namespace troupe::collectives::testing {

/// How a test's ranks are laid out.
struct Layout {
  std::vector<LeafInterval> leaves;     ///< empty: one a rank
  std::vector<std::vector<int>> nodes;  ///< the ranks of each machine; empty: all on one
  std::size_t data_bytes = 1 << 20;
  Duration timeout = std::chrono::seconds(60);
  Generation generation{1, 1};
};

/// The options of every rank of `size`, with regions and sockets made.
std::vector<NativeGroupOptions> options_of(int size, const Layout& layout = {});

using RankBody = std::function<void(ProcessGroup& group)>;

/// Runs `body` on a thread a rank; returns what each threw (empty: nothing), by rank.
std::vector<std::string> run_threads(std::vector<NativeGroupOptions> options, const RankBody& body);

/// As run_threads, and throws the first failure.
void run(int size, const Layout& layout, const RankBody& body);

/// Runs `body` in a forked process a rank; what each returned, or "threw: " and the message, and after it
/// "; exit N" for a process that did not end well. A rank that hangs for two minutes is killed (-14). For
/// tests with LibTorch, which has one generator and one autograd engine a process.
using SayingBody = std::function<std::string(std::shared_ptr<ProcessGroup> group)>;
std::vector<std::string> run_forked(std::vector<NativeGroupOptions> options, const SayingBody& body);

/// A forked rank: exits with 0 if `body` returns and 1 if it throws, its message on standard error; as above
/// one that hangs is killed.
pid_t fork_rank(NativeGroupOptions options, const RankBody& body);
/// Waits for the end of a process: its exit code, or minus the signal.
int exit_of(pid_t pid);

/// How many descriptors this process has open, and how many threads.
std::size_t open_descriptors();
std::size_t running_threads();

}  // namespace troupe::collectives::testing
