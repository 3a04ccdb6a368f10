/// Ranks that come together by init_process_group, for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/rendezvous/init.hpp"
#include "tests/collectives/ranks.hpp"

namespace troupe::collectives::testing {

/// Throws unless `good`: a CHECK for threads and forked processes.
void expect(bool good, const std::string& what);

/// A port that nobody has at the moment.
std::uint16_t free_port();

/// A process that runs `body` and exits with 0, or with 1 and a message if it throws.
pid_t fork_process(const std::function<void()>& body);

/// As fork_process, a process a rank.
std::vector<pid_t> fork_ranks(int size, const std::function<void(int rank)>& body);
/// How each ended (exit_of), in their order.
std::vector<int> exits_of(const std::vector<pid_t>& processes);

using GroupBody = std::function<void(const std::shared_ptr<ProcessGroup>& group)>;

/// A rank that never comes is an error, and not ctest's timeout.
inline const InitOptions kPatient{.timeout = std::chrono::seconds(60)};

/// Runs `ranks` of `size` at `url` as threads, each with its group; what each threw, in the order of `ranks`.
/// `hosts`: how the host of each rank is called; empty: they are on one.
std::vector<std::string> run_at(const std::string& url, int size, const std::vector<int>& ranks,
                                const GroupBody& body, const InitOptions& options = kPatient,
                                const std::string& backend = "native",
                                const std::vector<std::string>& hosts = {});

/// As run_at, all ranks of `size`, at a port of this machine.
std::vector<std::string> run_ranks(int size, const GroupBody& body, const InitOptions& options = kPatient,
                                   const std::string& backend = "native",
                                   const std::vector<std::string>& hosts = {});

}  // namespace troupe::collectives::testing
