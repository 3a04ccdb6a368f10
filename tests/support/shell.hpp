/// A command that a test runs, and what it said.
#pragma once

#include <stdio.h>
#include <sys/wait.h>

#include <stdexcept>
#include <string>

namespace troupe::test {

struct Ran {
  int code = -1;       ///< 128 + number for a signal
  std::string output;  ///< both streams
};

inline Ran shell(const std::string& command) {
  Ran ran;
  FILE* pipe = ::popen(("exec 2>&1; " + command).c_str(), "re");
  if (pipe == nullptr) throw std::runtime_error("cannot start a shell");
  char buffer[4096];
  for (std::size_t got = 0; (got = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    ran.output.append(buffer, got);
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

}  // namespace troupe::test
