// What the surroundings of a program do to it: limits, closed streams, variables, forks. One clear error, or
// none.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/core/fd.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/support.hpp"

namespace environment_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

struct Adder {
  int add(int n) { return total += n; }
  /// Ends the session that it is of.
  void end_session();
  /// How a write beyond `ulimit -f` fails.
  std::string write_beyond(std::string path);
  int total = 0;
};

std::string Adder::write_beyond(std::string path) {
  const rlimit limit{4096, RLIM_INFINITY};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string bytes(8192, 'x');
  while (::write(file.get(), bytes.data(), bytes.size()) > 0) {
  }
  return std::strerror(errno);
}

/// Made before main, it goes after all that the first session made.
std::unique_ptr<DriverSession> global_session;

void Adder::end_session() {
  global_session.reset();
}

/// Starts a cluster, calls an actor in it, and writes how that went.
void use_a_cluster() {
  std::string how;
  try {
    auto session = init(0, nullptr);
    how = session.spawn<Adder>({.isolated = true}).call<&Adder::add>(5).get(30s) == 5 ? "works" : "wrong";
  } catch (const Error& error) {
    how = std::string(error_code_name(error.code())) + ": " + error.what();
  }
  write_file(program_folder() + "/how", how);
}

/// What the program says, with this environment variable.
std::string with_variable(const char* name, const char* value) {
  TempFolder folder;
  ::setenv(name, value, 1);
  Program program("program: uses a cluster", folder.path());
  ::unsetenv(name);
  CHECK(program.wait(60s) == "exit code 0");
  return read_file(folder.path() + "/how") + "\n" + read_file(folder.path() + "/err");
}

}  // namespace

TEST_CASE("program: uses a cluster", "[.program]") {
  use_a_cluster();
}

TEST_CASE("program: has few descriptors", "[.program]") {
  const auto few = static_cast<rlim_t>(std::stoul(read_file(program_folder() + "/limit")));
  const rlimit limit{few, few};
  ::setrlimit(RLIMIT_NOFILE, &limit);
  use_a_cluster();
}

TEST_CASE("a low limit on descriptors is one clear error", "[environment]") {
  // Was: a broken invariant, or an abort in libzmq.
  for (const int limit : {8, 16, 17, 22, 23, 28, 32, 63, 64, 256}) {
    TempFolder folder;
    write_file(folder.path() + "/limit", std::to_string(limit));
    Program program("program: has few descriptors", folder.path());
    CHECK(program.wait(90s) == "exit code 0");
    const std::string how = read_file(folder.path() + "/how"), err = read_file(folder.path() + "/err");
    INFO(limit << ": " << how << "\n" << err);
    CHECK(how == (limit < 64 ? "limit: this process may open too few files and sockets: " +
                                   std::to_string(limit) + " are allowed, and it needs 64 (raise ulimit -n)"
                             : "works"));
    CHECK(err.empty());
  }
}

// Was: SIGXFSZ ended whichever of them wrote.
TEST_CASE("what is written beyond ulimit -f is an error of workers, not their end", "[environment]") {
  const TempFolder folder;
  auto session = init(0, nullptr);
  const auto adder = session.spawn<Adder>({.isolated = true});
  CHECK(adder.call<&Adder::write_beyond>(folder.path() + "/file").get(60s) == std::strerror(EFBIG));
}

TEST_CASE("program: has closed streams", "[.program]") {
  for (const int fd : {0, 1, 2}) ::close(fd);
  auto session = init(0, nullptr);
  struct stat null {
  }, stream{};
  bool is_null = ::stat("/dev/null", &null) == 0;
  for (const int fd : {0, 1, 2})
    is_null = is_null && ::fstat(fd, &stream) == 0 && stream.st_rdev == null.st_rdev;
  std::printf("this must land nowhere\n");
  std::fflush(stdout);
  const int sum = session.spawn<Adder>({.isolated = true}).call<&Adder::add>(5).get(30s);
  write_file(program_folder() + "/how", is_null && sum == 5 ? "works" : "wrong");
}

TEST_CASE("a program whose standard streams are closed gets /dev/null there", "[environment]") {
  // Was: sockets got their numbers, and what was printed went into them.
  TempFolder folder;
  Program program("program: has closed streams", folder.path());
  program.wait(60s);
  CHECK(read_file(folder.path() + "/how") == "works");
}

TEST_CASE("a variable with a value that is none of its own is told of", "[environment]") {
  // Was: ignored in silence.
  const std::string log = with_variable("TROUPE_LOG", "verbose");
  CHECK(log.starts_with("works\n"));
  CHECK(count(log, "TROUPE_LOG=verbose is ignored: it is debug, info, warning or error") == 1);
  for (const char* value : {"12GB", "-1", "0", "", "99999999999999999999999"}) {
    const std::string how = with_variable("TROUPE_REGION_BYTES", value);
    INFO(how);
    CHECK(how.starts_with(error_code_name(ErrorCode::kBadConfig)));
    CHECK(how.find(std::string("cannot use TROUPE_REGION_BYTES=") + value) != std::string::npos);
  }
  CHECK(with_variable("TROUPE_REGIONS_BYTES", "many").find("TROUPE_REGIONS_BYTES=many") != std::string::npos);
  CHECK(with_variable("TROUPE_REGION_BYTES", "1000000").starts_with("works\n"));
}

TEST_CASE("program: has a session in a global variable", "[.program]") {
  global_session = std::make_unique<DriverSession>(init(0, nullptr));
  const auto here = global_session->spawn<Adder>({.here = true});
  if (global_session->spawn<Adder>({.isolated = true}).call<&Adder::add>(5).get(30s) == 5 &&
      here.call<&Adder::add>(5).get(30s) == 5)
    write_file(program_folder() + "/how", "works");
}

TEST_CASE("a session in a global variable ends with its program", "[environment]") {
  // Was: "free(): corrupted unsorted chunks".
  TempFolder folder;
  Program program("program: has a session in a global variable", folder.path());
  CHECK(program.wait(60s) == "exit code 0");
  CHECK(read_file(folder.path() + "/how") == "works");
  CHECK(read_file(folder.path() + "/err").empty());
  CHECK(eventually([&] { return program.processes().empty(); }));
}

TEST_CASE("program: ends its session in a callback", "[.program]") {
  global_session = std::make_unique<DriverSession>(init(0, nullptr));
  const auto adder = global_session->spawn<Adder>({.isolated = true});
  std::atomic<bool> ended{false};
  adder.call<&Adder::add>(5).then([&](const Result<int>&) {
    global_session.reset();
    ended = true;
  });
  if (eventually([&] { return ended.load(); }, 30s)) write_file(program_folder() + "/how", "ended");
}

TEST_CASE("program: ends its session in an actor", "[.program]") {
  global_session = std::make_unique<DriverSession>(init(0, nullptr));
  const auto adder = global_session->spawn<Adder>({.isolated = true, .here = true});
  const auto ended = adder.call<&Adder::end_session>();
  if (ended.wait(30s)) write_file(program_folder() + "/how", "ended");
}

TEST_CASE("a session can be ended by a callback or an actor, and the program's end waits for that",
          "[environment]") {
  // Was: it waited for the thread that it was in, for good.
  for (const std::string where : {"a callback", "an actor"}) {
    TempFolder folder;
    Program program("program: ends its session in " + where, folder.path());
    INFO(where);
    CHECK(program.wait(60s) == "exit code 0");
    CHECK(read_file(folder.path() + "/how") == "ended");
    CHECK(read_file(folder.path() + "/err").empty());
    CHECK(eventually([&] { return program.processes().empty(); }));
  }
}

TEST_CASE("a forked child gets one clear error, and takes no answer of its parent", "[environment]") {
  // Was: the child read its parent's answers from the rings; its end ended the parent's cluster.
  auto session = std::make_unique<DriverSession>(init(0, nullptr));
  auto adder = session->spawn<Adder>({.isolated = true});
  const auto before = adder.call<&Adder::add>(1);
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    const auto refused = [&](auto&& use) {
      try {
        use();
        ++wrong;
      } catch (const BadConfig& error) {
        if (std::string(error.what()).find("forked") == std::string::npos) ++wrong;
      }
    };
    const auto unanswered = [&] {
      if (!before.ready()) before.get(30s);
    };
    if (!before.ready()) refused(unanswered);
    refused([&] { adder.call<&Adder::add>(1); });
    refused([&] { session->spawn<Adder>(); });
    refused([&] { session->nodes(); });
    refused([&] { session->open_region("key", 4096, "label", false); });
    session.reset();  // as when main returns
    ::_exit(wrong);
  }
  int status = -1;
  REQUIRE(eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; }, 60s));
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(before.get(30s) == 1);
  for (int i = 2; i < 100; ++i) CHECK(adder.call<&Adder::add>(1).get(30s) == i);
}

}  // namespace environment_test
