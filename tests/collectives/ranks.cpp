#include "tests/collectives/ranks.hpp"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "collectives/rendezvous/connect/mesh.hpp"
#include "tests/support/threads.hpp"

namespace troupe::collectives::testing {
namespace {

/// A hang is a failure: after two minutes a forked rank is killed by its alarm.
[[noreturn]] void say(NativeGroupOptions options, const SayingBody& body, int to) {
  ::alarm(120);
  std::string said;
  try {
    said = body(make_native_group(std::move(options)));
  } catch (const std::exception& error) {
    said = std::string("threw: ") + error.what();
  }
  for (std::size_t at = 0; at < said.size();) {
    const ssize_t n = ::write(to, said.data() + at, said.size() - at);
    if (n <= 0) ::_exit(2);
    at += static_cast<std::size_t>(n);
  }
  ::_exit(0);
}

std::string read_all(int from) {
  std::string text;
  char bytes[4096];
  for (ssize_t n = 0; (n = ::read(from, bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<std::size_t>(n));
  ::close(from);
  return text;
}

/// Sockets for collectives, and a listener a rank for messages.
void connect(std::vector<NativeGroupOptions>& options) {
  const std::vector<std::byte> key(32, std::byte{7});
  std::vector<std::shared_ptr<const DataListener>> listeners;
  for (std::size_t r = 0; r < options.size(); ++r)
    listeners.push_back(std::make_shared<DataListener>(DataListener::bind({"127.0.0.1", 0}).value()));
  for (auto& a : options) {
    MeshOptions mesh{.self = {a.generation, a.size, a.rank}};
    const auto needed = native_peers(a.machines, a.rank);
    for (auto& b : options) {
      if (a.region == b.region) continue;
      mesh.peers[b.rank] = listeners[static_cast<std::size_t>(b.rank)]->endpoint();
      if (a.rank > b.rank || !std::binary_search(needed.begin(), needed.end(), b.rank)) continue;
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        throw std::runtime_error("socketpair");
      a.remote[b.rank].socket = UniqueFd(ends[0]);
      b.remote[a.rank].socket = UniqueFd(ends[1]);
    }
    if (mesh.peers.empty()) continue;
    a.connector = std::make_unique<Mesh>(listeners[static_cast<std::size_t>(a.rank)],
                                         std::span(key).first<32>(), std::move(mesh));
  }
}

}  // namespace

std::vector<NativeGroupOptions> options_of(int size, const Layout& layout) {
  auto nodes = layout.nodes;
  if (nodes.empty()) {
    nodes.emplace_back();
    for (int r = 0; r < size; ++r) nodes.back().push_back(r);
  }
  std::vector<NativeGroupOptions> options(static_cast<std::size_t>(size));
  std::vector<int> machines(static_cast<std::size_t>(size));
  for (std::size_t machine = 0; machine < nodes.size(); ++machine) {
    for (int r : nodes[machine]) machines[static_cast<std::size_t>(r)] = static_cast<int>(machine);
  }
  for (const auto& ranks : nodes) {
    const auto bytes = native_region_bytes(machines, ranks.front(), layout.data_bytes);
    auto region = std::make_shared<SharedMemory>(SharedMemory::create("test", bytes, false).value());
    for (int r : ranks) {
      auto& o = options[static_cast<std::size_t>(r)];
      o.rank = r;
      o.size = size;
      o.leaves = layout.leaves;
      o.generation = layout.generation;
      o.timeout = layout.timeout;
      o.region = region;
      o.data_bytes = layout.data_bytes;
      o.machines = machines;
    }
  }
  connect(options);
  return options;
}

std::vector<std::string> run_threads(std::vector<NativeGroupOptions> options, const RankBody& body) {
  return test::run_on_threads(options.size(), [&](int rank) {
    const auto group = make_native_group(std::move(options[static_cast<std::size_t>(rank)]));
    body(*group);
  });
}

void run(int size, const Layout& layout, const RankBody& body) {
  for (const auto& what : run_threads(options_of(size, layout), body)) {
    if (!what.empty()) throw std::runtime_error(what);
  }
}

std::vector<std::string> run_forked(std::vector<NativeGroupOptions> options, const SayingBody& body) {
  std::vector<int> ends;
  std::vector<pid_t> pids;
  for (auto& rank : options) {
    int pipe_ends[2];
    if (::pipe(pipe_ends) != 0) throw std::runtime_error("pipe");
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("fork");
    if (pid == 0) say(std::move(rank), body, pipe_ends[1]);
    ::close(pipe_ends[1]);
    ends.push_back(pipe_ends[0]);
    pids.push_back(pid);
  }
  std::vector<std::string> said;
  for (const int end : ends) said.push_back(read_all(end));
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    const int code = exit_of(pids[rank]);
    if (code != 0) said[rank] += "; exit " + std::to_string(code);
  }
  return said;
}

pid_t fork_rank(NativeGroupOptions options, const RankBody& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::alarm(120);
  try {
    const auto group = make_native_group(std::move(options));
    body(*group);
    ::_exit(0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "forked rank: %s\n", e.what());
    ::_exit(1);
  }
}

int exit_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

namespace {

std::size_t entries(const char* folder) {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

}  // namespace

std::size_t open_descriptors() {
  return entries("/proc/self/fd");
}

std::size_t running_threads() {
  return entries("/proc/self/task");
}

}  // namespace troupe::collectives::testing
