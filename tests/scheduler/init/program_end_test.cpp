// How a program ends that does not catch an error.
#include "scheduler/init/program_end.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>

#include "runtime/core/error.hpp"
#include "runtime/core/fd.hpp"

using namespace troupe;

namespace {

struct End {
  int status = 0;
  std::string said;
};

/// Of a process that throws it out of its main().
template <class Thrown>
End end_of_process_that_throws(const Thrown& thrown) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  UniqueFd from(ends[0]), to(ends[1]);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // not Catch's
    ::dup2(to.get(), STDERR_FILENO);
    say_uncaught_errors("digits");
    say_uncaught_errors("again");
    const std::function<void()> throws = [&] { throw thrown; };
    [&]() noexcept { throws(); }();
  }
  to.reset();
  End end;
  char piece[512];
  for (ssize_t got = 0; (got = ::read(from.get(), piece, sizeof piece)) > 0;)
    end.said.append(piece, static_cast<std::size_t>(got));
  REQUIRE(::waitpid(child, &end.status, 0) == child);
  return end;
}

}  // namespace

TEST_CASE("an error that main() does not catch is one line and exit code 1; anything else aborts") {
  const End error = end_of_process_that_throws(BadConfig("it cannot start", "0 trainers", "ask for one"));
  CHECK(error.said == "digits: it cannot start: 0 trainers (ask for one)\n");
  REQUIRE(WIFEXITED(error.status));
  CHECK(WEXITSTATUS(error.status) == 1);
  const End other = end_of_process_that_throws(std::logic_error("a defect"));
  REQUIRE(WIFSIGNALED(other.status));
  CHECK(WTERMSIG(other.status) == SIGABRT);
  CHECK(other.said.find("a defect") != std::string::npos);
}
