// What a process says of itself in its arguments, and of its threads in a dump.
#include "runtime/core/process_title.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>

#include "runtime/core/dumps.hpp"
#include "runtime/core/futex.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using Catch::Matchers::Contains;

TEST_CASE("a process's arguments are its title and notes, or another program's") {
  const ProcessTitle read =
      parse_process_title(std::string_view("troupe: trainer 0 of Mnist rank=0 step=12\0rest", 46));
  CHECK(read.title == "trainer 0 of Mnist");
  CHECK(read.notes == std::vector<std::pair<std::string, std::string>>{{"rank", "0"}, {"step", "12"}});
  CHECK(parse_process_title("").title.empty());
  CHECK(parse_process_title(std::string_view("vi\0troupe: x\0", 13)).title.empty());
  CHECK(parse_process_title("troupe: a=b c = x=1").title == "a=b c =");
}

// A child, since a title stays. Its own arguments stay where they were, for who still points there.
TEST_CASE("a process that is named says so to others, and what it notes") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    note_process("step", "1");  // not named: the user's program
    if (!read_process_title(::getpid()).title.empty()) ::_exit(1);
    name_process("trainer 1");
    name_process_work("Mnist");
    for (int step = 0; step < 1000; ++step) note_process("step", std::to_string(step));
    note_process("rank", "3 of");
    [[maybe_unused]] const auto told = ::write(ends[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(ends[0], &byte, 1) == 1);
  const ProcessTitle title = read_process_title(child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (title.title.empty()) {
    WARN("this kernel lets no process name itself (CONFIG_CHECKPOINT_RESTORE)");
    return;
  }
  CHECK(title.title == "trainer 1 of Mnist");
  CHECK(title.notes == std::vector<std::pair<std::string, std::string>>{{"step", "999"}, {"rank", "3_of"}});
}

TEST_CASE("threads are described with their calls, but those that block signals") {
  std::atomic<std::uint32_t> word{0};
  std::atomic<bool> over{false};
  const auto wait = [&] {
    while (!over) futex_wait(word, 0, std::chrono::seconds(60));
  };
  std::thread seen(wait);
  std::thread quiet = start_quiet_thread(wait);
  // Both are in their waits once the first one's stack has a frame of the C library.
  std::string text;
  CHECK(test::eventually([&] {
    text = describe_threads();
    return text.find("+0x") != std::string::npos && text.find("it blocks signals") != std::string::npos;
  }));
  INFO(text);
  CHECK_THAT(text, Contains("thread ") && Contains("test_core"));
  over = true;
  ++word;
  futex_wake(word, 2);
  seen.join();
  quiet.join();
}
