#include "tests/actors/ddp/ddp_ranks.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

#include "tests/collectives/ranks.hpp"

namespace troupe::train::testing {
namespace {

[[noreturn]] void serve(collectives::NativeGroupOptions options, const DdpBody& body, int to) {
  ::alarm(120);  // a hang is a failure
  std::string said;
  try {
    said = body(collectives::make_native_group(std::move(options)));
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

}  // namespace

std::vector<std::string> fork_ddp(int ranks, const DdpBody& body, std::size_t data_bytes) {
  collectives::testing::Layout layout;
  layout.data_bytes = data_bytes;
  auto options = collectives::testing::options_of(ranks, layout);
  std::vector<int> ends;
  std::vector<pid_t> pids;
  for (auto& rank : options) {
    int pipe_ends[2];
    if (::pipe(pipe_ends) != 0) throw std::runtime_error("pipe");
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("fork");
    if (pid == 0) serve(std::move(rank), body, pipe_ends[1]);
    ::close(pipe_ends[1]);
    ends.push_back(pipe_ends[0]);
    pids.push_back(pid);
  }
  std::vector<std::string> said;
  for (const int end : ends) said.push_back(read_all(end));
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    const int code = collectives::testing::exit_of(pids[rank]);
    if (code != 0) said[rank] += "; exit " + std::to_string(code);
  }
  return said;
}

}  // namespace troupe::train::testing
