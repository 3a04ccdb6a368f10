#include "tests/collectives/rendezvous_ranks.hpp"

#include <unistd.h>

#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "collectives/rendezvous/connect/mesh.hpp"

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

std::vector<std::string> run_at(const std::string& url, int size, const std::vector<int>& ranks,
                                const GroupBody& body, const InitOptions& options, const std::string& backend,
                                const std::vector<std::string>& hosts) {
  std::vector<std::string> thrown(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        InitOptions mine = options;
        mine.rank = ranks[i];
        mine.size = size;
        mine.data_bytes = 1 << 20;
        if (!hosts.empty()) mine.host = hosts.at(static_cast<std::size_t>(ranks[i]));
        body(init_process_group(backend, url, mine));
      } catch (const std::exception& e) {
        thrown[i] = e.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

std::vector<std::string> run_ranks(int size, const GroupBody& body, const InitOptions& options,
                                   const std::string& backend, const std::vector<std::string>& hosts) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return run_at("tcp://127.0.0.1:" + std::to_string(free_port()), size, ranks, body, options, backend, hosts);
}

}  // namespace troupe::collectives::testing
