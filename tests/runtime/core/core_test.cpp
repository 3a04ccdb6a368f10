#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/core/clock.hpp"
#include "runtime/core/ending.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/core/names.hpp"
#include "runtime/core/random.hpp"
#include "runtime/core/result.hpp"
#include "runtime/core/short_slice.hpp"
#include "runtime/core/thread_limit.hpp"
#include "runtime/core/wait_readable.hpp"
#include "runtime/core/whole_file.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

using namespace troupe;

TEST_CASE("an error's message has what, why and what to do") {
  const ErrorInfo info{ErrorCode::kTimeout, "no answer from actor 3", "1 s passed", "raise the timeout"};
  CHECK(info.message() == "no answer from actor 3: 1 s passed (raise the timeout)");
  CHECK_THROWS_AS(throw_error(info), Timeout);
  CHECK_THROWS_AS(Result<int>(info).value(), Timeout);
  CHECK(Result<int>(4).value() == 4);
}

TEST_CASE("generations are ordered by incarnation, then counter") {
  CHECK(Generation{1, 9} < Generation{2, 0});
  CHECK(Generation{2, 0} < Generation{2, 1});
}

TEST_CASE("a seed gives the same numbers, and another seed others") {
  SeededRandom a(7), b(7), c(8);
  const auto first = a.next();
  CHECK(first == b.next());
  CHECK(first != c.next());
  for (int i = 0; i < 1000; ++i) CHECK(a.below(3) < 3);
}

TEST_CASE("shared memory is seen by both mappings, and an unsealed segment is refused") {
  auto memory = SharedMemory::create("test", 5000, true).value();
  CHECK(memory.size() == 8192);
  auto copy = UniqueFd(::dup(memory.fd()));
  auto other = SharedMemory::map(std::move(copy)).value();
  memory.data()[4999] = std::byte{42};
  CHECK(other.data()[4999] == std::byte{42});

  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const UniqueFd writing(pipe_ends[1]);
  CHECK_FALSE(SharedMemory::map(UniqueFd(pipe_ends[0])).ok());
  CHECK_FALSE(SharedMemory::create("none", 0, false).ok());
}

// Was: a node waited with poll for its program to be gone, and each thread of that program that ended sent a
// signal: the first one broke off the wait, the program was taken to live, and what it had left behind
// stayed.
TEST_CASE("a wait for a descriptor goes on after a signal") {
  static std::atomic<int> signals{0};
  struct sigaction counts {
  }, before{};
  counts.sa_handler = [](int) { ++signals; };
  ::sigaction(SIGUSR1, &counts, &before);
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  std::atomic<pid_t> number{0};
  std::atomic<bool> is_readable{false};
  std::thread waits([&] {
    number = ::gettid();
    is_readable = wait_readable(event.get(), std::chrono::minutes(1));
  });
  const auto sleeps = [&] {
    const std::string stat = test::read_file("/proc/self/task/" + std::to_string(number) + "/stat");
    return stat.find(") S ") != std::string::npos;
  };
  CHECK(test::eventually([&] { return number != 0 && sleeps(); }));
  ::pthread_kill(waits.native_handle(), SIGUSR1);
  CHECK(test::eventually([] { return signals == 1; }));
  const std::uint64_t one = 1;
  CHECK(::write(event.get(), &one, sizeof one) == sizeof one);
  waits.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  CHECK(is_readable);
  CHECK(wait_readable(event.get(), Duration(0)));
  CHECK_FALSE(wait_readable(UniqueFd(::eventfd(0, EFD_CLOEXEC)).get(), Duration(0)));
  CHECK_FALSE(wait_readable(1 << 20, std::chrono::minutes(1)));
}

TEST_CASE("a process that ended by itself is told from one that was ended") {
  for (const char* own : {"killed by signal 11 (SIGSEGV)", "killed by signal 6 (SIGABRT)", "exit code 1",
                          "killed by signal 8 (SIGFPE)", "killed by signal 7 (SIGBUS)",
                          "exit code 3, last line of its output: killed by signal 9 (SIGKILL)",
                          "asked to (its process: exit code 2)", "exit code 0"}) {
    INFO(own);
    CHECK(ended_by_itself(own));
  }
  CHECK(ended_by_itself(with_last_line(ended_by_signal(11), "killed by signal 9")));
  CHECK_FALSE(ended_by_itself(ended_on_order("its node leaves", ended_with_code(0))));
  for (const char* outside :
       {"killed by signal 9 (SIGKILL)", "killed by signal 15 (SIGTERM)",
        "asked to (its process: exit code 0)", "no sign of life (its process: killed by signal 9 (SIGKILL))",
        "exit code 143", "its node is dead: silent for 6 s", ""}) {
    INFO(outside);
    CHECK_FALSE(ended_by_itself(outside));
  }
}

TEST_CASE("a file is written whole or not at all, and a half of one is nowhere") {
  const test::TempFolder folder;
  const std::string file = folder.path() + "/file";
  const auto text = [&] { return test::read_file(file); };
  REQUIRE(write_whole(file, "first").ok());
  CHECK(text() == "first");
  std::ofstream(file + ".new") << "of a writer that died";
  const std::string two = "second";
  const auto bytes = std::as_bytes(std::span(two));
  REQUIRE(write_whole(file, {bytes.first(3), bytes.subspan(3)},
                      {.temporary = file + ".new", .mode = 0600, .durable = true})
              .ok());
  CHECK(text() == "second");
  CHECK((std::filesystem::status(file).permissions() & std::filesystem::perms(0077)) ==
        std::filesystem::perms::none);
  CHECK_FALSE(std::filesystem::exists(file + ".new"));

  const auto no_folder = write_whole(folder.path() + "/none/file", "x", {.todo = "make the folder"});
  REQUIRE_FALSE(no_folder.ok());
  CHECK(no_folder.error().code == ErrorCode::kIo);
  CHECK(no_folder.error().message() ==
        "cannot write " + folder.path() + "/none/file: open: No such file or directory (make the folder)");
  std::filesystem::create_directory(folder.path() + "/taken");
  const auto taken = write_whole(folder.path() + "/taken", "x", {.what = "cannot keep it"});
  REQUIRE_FALSE(taken.ok());
  CHECK(taken.error().what == "cannot keep it: rename");
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/taken.part"));
}

// Was: under load each of the four threads on a request's way waited for milliseconds when it was woken.
TEST_CASE("a thread that asks for short slices has them, and so have those that it starts") {
  const auto slice_ns = [] {
    std::array<std::uint64_t, 6> attributes{};  // struct sched_attr: sched_runtime is its fourth word
    ::syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0);
    return attributes[3];
  };
  const std::uint64_t usual = slice_ns();
  if (usual == 0) return;  // before Linux 6.12
  std::uint64_t asked = 0, started = 0;
  std::thread([&] {
    ask_for_short_slices();
    asked = slice_ns();
    std::thread([&] { started = slice_ns(); }).join();
  }).join();
  CHECK(asked == 100'000);
  CHECK(started == asked);
  CHECK(slice_ns() == usual);
}

// Was: threads that could not be started ended heads and nodes by SIGABRT, and nothing said why.
TEST_CASE("too low a limit on processes is said before a thread is needed") {
  CHECK(check_thread_limit(4).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(0);  // root has no such limit
    const rlimit one{1, 1};
    ::setrlimit(RLIMIT_NPROC, &one);
    const auto checked = check_thread_limit(2);
    const std::string text = checked ? "" : checked.error().message();
    ::_exit(text.starts_with("cannot start a thread: the limit on processes (ulimit -u) is reached") ? 0 : 1);
  }
  int status = 1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

// Was: of a thread whose stack found no memory, "the limit on processes (ulimit -u) is reached".
TEST_CASE("a thread that finds no memory for its stack is told which limit it met") {
  const auto told_with = [](auto resource, int field) {
    const pid_t child = ::fork();
    if (child == 0) {
      rlim_t pages[6] = {};
      std::ifstream statm("/proc/self/statm");
      for (rlim_t& value : pages) statm >> value;
      const rlim_t most = pages[field] * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (1 << 20);
      const rlimit limit{most, most};
      ::setrlimit(resource, &limit);
      const std::string text =
          cannot_start_thread(std::make_error_code(std::errc::resource_unavailable_try_again)).message();
      const char* name = field == 0 ? "ulimit -v allows no more" : "ulimit -d allows no more";
      ::_exit(text.find(name) != std::string::npos ? 0 : 1);
    }
    int status = 1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status == 0;
  };
  CHECK(told_with(RLIMIT_AS, 0));
  CHECK(told_with(RLIMIT_DATA, 5));
}

// Was: "File too large", and to free space.
TEST_CASE("a write beyond ulimit -f is told with that limit") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit limit{8192, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const std::string told = io_error("cannot write x", EFBIG, "free space").message();
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(told ==
        "cannot write x: File too large: the limit on the length of a file (ulimit -f) is 8192 bytes "
        "(raise ulimit -f where it starts)");
}

TEST_CASE("a name has at most 256 bytes, and no control characters") {
  for (const std::string good : {"", "a", "my actor/0", "na\xc3\xafve"}) CHECK_FALSE(check_name(good, "no"));
  CHECK_FALSE(check_name(std::string(kMostNameBytes, 'n'), "no"));
  const auto longer = check_name(std::string(kMostNameBytes + 1, 'n'), "cannot", "its label");
  REQUIRE(longer);
  CHECK(longer->code == ErrorCode::kLimit);
  CHECK(longer->message() == "cannot: its label has 257 bytes, and 256 are the most (choose a shorter one)");
  for (const char* bad : {"\n", "a\nb", "\x1b[2J", "a\x7f", "\t"}) {
    const auto wrong = check_name(bad, "cannot");
    REQUIRE(wrong);
    CHECK(wrong->code == ErrorCode::kBadInput);
    CHECK(wrong->why == "its name has a control character");
  }
  CHECK(check_name(std::string("a\0b", 3), "cannot"));
}

// Was: bytes that are no UTF-8 went to the terminal, and into tables, as they were.
TEST_CASE("text of others is shown without control characters and as UTF-8") {
  CHECK(escape_name("a\x1b[31m\n\x7f") == "a\\x1b[31m\\x0a\\x7f");
  CHECK(escape_text("a\tb\nc\r") == "a\tb\nc\\x0d");
  CHECK(escape_name("na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80") ==
        "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80");
  CHECK(escape_name("\xc2\x9b") == "\\xc2\\x9b");  // a control character beyond ASCII
  CHECK(escape_name("\xff\xfe"
                    "a\xe2\x82") ==
        "\\xff\\xfe"
        "a\\xe2\\x82");
  CHECK(escape_name("\xc0\xaf \xe0\x80\xaf") == "\\xc0\\xaf \\xe0\\x80\\xaf");  // longer than need be
  CHECK(escape_name("\xed\xa0\x80") == "\\xed\\xa0\\x80");                      // a half of UTF-16's
  CHECK(shown_name(std::string(300, 'x'), 10) == "xxxxxxxxxx... (300 bytes)");
}
