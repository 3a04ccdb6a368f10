// Stacks of a process's threads, and the signal that takes them.
#include "runtime/core/dumps.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

using namespace troupe;

namespace {

std::atomic<int> calls_of_user{0};

/// Stands in the kernel, where no signal reaches it, until a byte comes.
void stand(int fd) {
  if (::vfork() == 0) {
    char byte = 0;
    [[maybe_unused]] const auto read = ::read(fd, &byte, 1);
    ::_exit(0);
  }
}

}  // namespace

// Was: the user's handler was put back while the signal of a thread that was late was still under way.
TEST_CASE("a signal that a thread takes too late reaches nobody else's handler, and others' signals do") {
  struct sigaction users {};
  users.sa_handler = [](int) { ++calls_of_user; };
  ::sigaction(SIGRTMAX - 3, &users, nullptr);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::thread late([&] { stand(ends[0]); });
  std::string text;
  do {
    text = describe_threads(std::chrono::milliseconds(20));
  } while (text.find("did not answer") == std::string::npos);
  REQUIRE(::write(ends[1], "x", 1) == 1);
  late.join();
  CHECK(calls_of_user == 0);
  ::raise(SIGRTMAX - 3);
  CHECK(calls_of_user == 1);
  CHECK(describe_threads().find("did not answer") == std::string::npos);
  ::raise(SIGRTMAX - 3);
  CHECK(calls_of_user == 2);
  ::close(ends[0]);
  ::close(ends[1]);
}
