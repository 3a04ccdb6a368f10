#include "actors/report/terminal.hpp"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "runtime/core/fd.hpp"

using namespace troupe;
using namespace troupe::report;

TEST_CASE("a terminal is told from a pipe") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  FdOutput pipe(writer.get());
  CHECK_FALSE(pipe.is_terminal());
  CHECK_FALSE(pipe.has_colour());
  CHECK(pipe.columns() == 80);
  pipe.write("hello");
  std::array<char, 8> got{};
  CHECK(::read(reader.get(), got.data(), got.size()) == 5);

  int master = -1;
  int slave = -1;
  const winsize size{24, 123, 0, 0};
  if (::openpty(&master, &slave, nullptr, nullptr, &size) != 0) {
    WARN("skipped: this machine gives no pseudo-terminal");
    return;
  }
  const UniqueFd master_end(master);
  const UniqueFd slave_end(slave);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  CHECK(FdOutput(slave).is_terminal());
  CHECK(FdOutput(slave).has_colour());
  CHECK(FdOutput(slave).columns() == 123);
  ::setenv("NO_COLOR", "1", 1);
  CHECK(FdOutput(slave).is_terminal());
  CHECK_FALSE(FdOutput(slave).has_colour());
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  CHECK_FALSE(FdOutput(slave).is_terminal());
  CHECK_FALSE(FdOutput(slave).has_colour());
}

TEST_CASE("a reader that went away does not stop the writer") {
  FdOutput closed(-1);
  closed.write("nobody");
  CHECK_FALSE(closed.is_terminal());
}
