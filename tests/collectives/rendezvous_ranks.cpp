#include "tests/collectives/rendezvous_ranks.hpp"

#include <unistd.h>

#include <cstdio>
#include <numeric>
#include <stdexcept>

#include "collectives/rendezvous/connect/mesh.hpp"
#include "tests/support/threads.hpp"

namespace troupe::collectives::testing {

void expect(bool good, const std::string& what) {
  if (!good) throw std::runtime_error("not so: " + what);
}

std::uint16_t free_port() {
  return DataListener::bind({"127.0.0.1", 0}).value().endpoint().port;
}

pid_t fork_process(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    body();
    ::_exit(0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "forked process: %s\n", e.what());
    ::_exit(1);
  }
}

std::vector<pid_t> fork_ranks(int size, const std::function<void(int rank)>& body) {
  std::vector<pid_t> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(fork_process([&] { body(r); }));
  return ranks;
}

std::vector<int> exits_of(const std::vector<pid_t>& processes) {
  std::vector<int> exits;
  for (const pid_t pid : processes) exits.push_back(exit_of(pid));
  return exits;
}

std::vector<std::string> run_at(const std::string& url, int size, const std::vector<int>& ranks,
                                const GroupBody& body, const InitOptions& options, const std::string& backend,
                                const std::vector<std::string>& hosts) {
  return test::run_on_threads(ranks.size(), [&](int i) {
    InitOptions mine = options;
    mine.rank = ranks[static_cast<std::size_t>(i)];
    mine.size = size;
    mine.data_bytes = 1 << 20;
    if (!hosts.empty()) mine.host = hosts.at(static_cast<std::size_t>(mine.rank));
    body(init_process_group(backend, url, mine));
  });
}

std::vector<std::string> run_ranks(int size, const GroupBody& body, const InitOptions& options,
                                   const std::string& backend, const std::vector<std::string>& hosts) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return run_at("tcp://127.0.0.1:" + std::to_string(free_port()), size, ranks, body, options, backend, hosts);
}

}  // namespace troupe::collectives::testing
