// troupe run and launch::spawn with real processes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <troupe/launch.hpp>

#include "runtime/core/fd.hpp"
#include "runtime/core/held_port.hpp"
#include "tests/e2e/support.hpp"
#include "tests/support/contains.hpp"

namespace launch_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;
using troupe::test::contains;
namespace fs = std::filesystem;

namespace {

/// `troupe run`, started without waiting for it. All that it starts has `mark` in its environment.
class Launcher {
 public:
  explicit Launcher(const std::string& words) : out_(folder_.path() + "/out") {
    mark_ = "TROUPE_TEST_MARK=" + folder_.path();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      const int out = ::open(out_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(out, STDOUT_FILENO);
      ::dup2(out, STDERR_FILENO);
      ::setenv("TROUPE_TEST_MARK", folder_.path().c_str(), 1);
      ::setenv("TMPDIR", temporary().c_str(), 1);
      ::setenv("OUT", folder_.path().c_str(), 1);
      fs::create_directory(temporary());
      ::execl("/bin/sh", "sh", "-c", ("exec " TROUPE_CLI " run " + words).c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~Launcher() {
    for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
    if (!reaped_) ::waitpid(pid_, nullptr, 0);
  }

  int wait() {
    int status = 0;
    INFO(output());
    REQUIRE(eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, 60s));
    reaped_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string output() const { return read_file(out_); }
  bool says(const std::string& part, Duration timeout = 30s) const {
    return eventually([&] { return output().find(part) != std::string::npos; }, timeout);
  }
  pid_t pid() const { return pid_; }
  std::string temporary() const { return folder_.path() + "/tmp"; }
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }
  /// Of all that carry the mark, by name; the launcher, too.
  std::vector<pid_t> processes() const {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      if (pid > 0 && is_alive(pid) &&
          read_file(entry.path() / "environ").find(mark_ + '\0') != std::string::npos)
        found.push_back(pid);
    }
    return found;
  }
  bool nothing_is_left() const {
    return eventually([&] { return processes().empty(); }) &&
           eventually([&] { return fs::is_empty(temporary()); });
  }

 private:
  TempFolder folder_;
  std::string out_, mark_;
  pid_t pid_ = -1;
  bool reaped_ = false;
};

Ran run(const std::string& words, const std::string& variables = "") {
  return shell(variables + " " TROUPE_CLI " run " + words);
}

}  // namespace

TEST_CASE("two ranks find their environment, their arguments and this terminal") {
  const auto ran =
      run("--nproc-per-node 2 sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
          "$MASTER_ADDR $TORCHELASTIC_USE_AGENT_STORE \"$0\"' 'a  b'");
  CHECK(ran.code == 0);
  CHECK(sorted_lines(ran.output) ==
        std::vector<std::string>{
            "0 0 2 2 0 127.0.0.1 False a  b", "1 1 2 2 0 127.0.0.1 False a  b",
            "troupe run: each rank has OMP_NUM_THREADS=1, so that ranks on one node and on "
            "several give the same bits; set it where speed counts more, in a cluster in its nodes' "
            "environment"});
  // Underscores, and a variable of torchrun's; a flag wins.
  CHECK(run("--nproc_per_node=1 sh -c 'echo $WORLD_SIZE'", "PET_NPROC_PER_NODE=3").output == "1\n");
  CHECK(run("sh -c 'echo $WORLD_SIZE'", "PET_NPROC_PER_NODE=2 OMP_NUM_THREADS=1").output == "2\n2\n");
  CHECK(run("--standalone sh -c 'echo $*' x --role y --help").output == "--role y --help\n");
  CHECK(run("--role trainer sh -c 'echo $ROLE_NAME'").output == "trainer\n");
  // More ranks than cores are started, and that is said.
  const auto many =
      run("--nproc-per-node 2 true", "taskset -c $(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')");
  INFO(many.output);
  CHECK(many.code == 0);
  CHECK(contains(many.output, "2 ranks share the 1 core of this machine"));
}

// Was: ranks of a cluster had inherited that SIGINT is ignored, so Ctrl-C ended nothing, and held the
// connection of the process that started them.
TEST_CASE(
    "a rank finds no signal ignored and no descriptor but the standard ones; -- before it is left out") {
  const auto ran =
      shell("trap '' INT QUIT; exec 9</dev/null; " TROUPE_CLI
            " run --nproc-per-node=1 --role x -- sh -c 'grep SigIgn /proc/self/status; ls /proc/$$/fd' --");
  INFO(ran.output);
  CHECK(ran.code == 0);
  CHECK(std::regex_search(ran.output, std::regex("SigIgn:\t[0-9a-f]{8}[08]0000000")));  // of 1 to 31
  CHECK_FALSE(contains(ran.output, "\n9\n"));
}

TEST_CASE("a rank that fails is named, with the text of its error file, and the others end") {
  Launcher launcher(
      "--nproc-per-node 2 sh -c 'if [ $RANK = 1 ]; then "
      "echo \"{\\\"message\\\": \\\"ValueError: no\\\"}\" > $TORCHELASTIC_ERROR_FILE; exit 3; fi; "
      "sleep 1000 & wait'");
  CHECK(launcher.wait() == 1);
  CHECK(std::regex_search(launcher.output(),
                          std::regex("rank 1, process [0-9]+: exit code 3: ValueError: no")));
  CHECK(launcher.nothing_is_left());
  CHECK(run("--nproc-per-node 2 --exit-code first sh -c 'exit 3'").code == 3);
}

TEST_CASE("ranks start again as often as they may, each time at another port") {
  Launcher launcher(
      "--nproc-per-node 2 --max-restarts 2 sh -c 'echo $MASTER_PORT >> $OUT/ports; "
      "[ $TORCHELASTIC_RESTART_COUNT = 2 ]'");
  CHECK(launcher.wait() == 0);
  CHECK(launcher.says("restart 2 of 2"));
  // Each attempt has one port, and the rank that failed first had written it.
  const auto ports = sorted_lines(read_file(launcher.file("ports")));
  CHECK(std::set<std::string>(ports.begin(), ports.end()).size() == 3);
  CHECK(launcher.nothing_is_left());
}

TEST_CASE("a rank that is killed ends the run, one that is stopped or deaf with it") {
  Launcher launcher(
      "--nproc-per-node 3 --shutdown-timeout 1 sh -c 'echo $$ > $OUT/new.$RANK; mv $OUT/new.$RANK "
      "$OUT/pid.$RANK; "
      "[ $RANK = 2 ] && trap \"\" TERM; while :; do sleep 0.1; done'");
  const auto pid_of = [&](int rank) {
    return std::atoi(read_file(launcher.file("pid." + std::to_string(rank))).c_str());
  };
  REQUIRE(eventually([&] { return pid_of(0) > 0 && pid_of(1) > 0 && pid_of(2) > 0; }));
  ::kill(pid_of(1), SIGSTOP);
  ::kill(pid_of(0), SIGKILL);
  CHECK(launcher.wait() == 1);
  CHECK(contains(launcher.output(),
                 "rank 0, process " + std::to_string(pid_of(0)) + ": killed by signal 9 (SIGKILL)"));
  CHECK(launcher.nothing_is_left());
}

TEST_CASE("Ctrl-C goes to the ranks, and a second one ends them") {
  Launcher launcher(
      "--nproc-per-node 2 sh -c 'trap \"echo caught\" INT; echo ready; while :; do sleep 0.1; done'");
  REQUIRE(eventually([&] { return count(launcher.output(), "ready") == 2; }));
  ::kill(launcher.pid(), SIGINT);
  CHECK(eventually([&] { return count(launcher.output(), "caught") == 2; }));
  CHECK(is_alive(launcher.pid()));
  ::kill(launcher.pid(), SIGINT);
  CHECK(launcher.wait() == 1);
  CHECK(launcher.says("SIGINT again"));
  CHECK(launcher.nothing_is_left());
}

TEST_CASE("when the launcher is killed, ranks and what they have forked end, and its files go") {
  Launcher launcher("--nproc-per-node 2 sh -c 'sleep 1000 & echo ready; wait'");
  REQUIRE(eventually([&] { return count(launcher.output(), "ready") == 2; }));
  CHECK(launcher.processes().size() >= 5);
  ::kill(launcher.pid(), SIGKILL);
  launcher.wait();
  CHECK(launcher.nothing_is_left());
}

TEST_CASE("streams go to files, here with a prefix, or nowhere") {
  TempFolder folder;
  const std::string logs = folder.path() + "/logs";
  const std::string program = "sh -c 'echo out $RANK; printf err >&2'";
  const auto tee = run("--nproc-per-node 2 --tee 3 --rdzv-id id --log-dir " + logs + " " + program);
  CHECK(tee.code == 0);
  CHECK(contains(tee.output, "[default0]:out 0\n"));
  CHECK(contains(tee.output, "[default1]:err\n"));
  const std::string attempt = fs::directory_iterator(logs)->path().string() + "/attempt_0";
  CHECK(read_file(attempt + "/1/stdout.log") == "out 1\n");
  CHECK(read_file(attempt + "/0/stderr.log") == "err");
  const auto redirected = run("--nproc-per-node 2 -r 0:1 --log-dir " + logs + " " + program);
  CHECK_FALSE(contains(redirected.output, "out 0"));
  CHECK(contains(redirected.output, "out 1\n"));
  CHECK(run("--nproc-per-node 2 --local-ranks-filter 1 sh -c 'echo $RANK'", "OMP_NUM_THREADS=1").output ==
        "1\n");
}

// Was: logs grew without bounds, 4.9 GB in 20 s of a program that printed without end.
TEST_CASE("a rank's log keeps the newest that it prints, and that the rest is gone is said once") {
  TempFolder folder;
  const std::string lines = "seq -f %015999g 1 200";  // 16,000 bytes each
  const std::string start = "--nproc-per-node 2 --log-limit 1 --log-dir " + folder.path() + " ";
  for (const char* flag : {"-r 3 ", "-t 3 "}) {
    const auto ran = run(start + flag + lines + " | grep -v :0");
    INFO(ran.output);
    CHECK(count(ran.output, "keeps the newest 1 MiB, and older output is gone (--log-limit keeps more)") ==
          1);
  }
  int runs = 0;
  for (const auto& logs : fs::directory_iterator(folder.path())) {
    ++runs;
    for (const char* rank : {"0", "1"}) {
      std::vector<fs::path> files;
      for (const auto& entry : fs::directory_iterator(logs.path() / "attempt_0" / rank)) {
        if (entry.path().filename().string().starts_with("stdout.log")) files.push_back(entry.path());
      }
      std::sort(files.begin(), files.end());  // the newest, stdout.log, is first
      std::string kept;
      for (std::size_t i = 1; i <= files.size(); ++i) kept += read_file(files[i % files.size()].string());
      const std::string first = files.at(1).filename().string();
      CHECK(std::stoul(first.substr(first.rfind('.') + 1)) + kept.size() == 200 * 16'000);
      CHECK(kept.size() > 700'000);
      CHECK(kept.size() <= 1'200'000);
      CHECK(kept.ends_with("00200\n"));
    }
  }
  CHECK(runs == 2);
}

// Was: -t read on for ever when the reader of its output was gone, and output that a full disk did not take
// was a success.
TEST_CASE("output that nobody reads ends the run as SIGPIPE does, and a full disk is told once") {
  TempFolder folder;
  const std::string start =
      "timeout 60 " TROUPE_CLI " run --nproc-per-node 2 -t 3 --log-dir " + folder.path();
  const auto unread = shell("bash -c '" + start + " yes | head -1; exit ${PIPESTATUS[0]}'");
  INFO(unread.output);
  CHECK(unread.code == 128 + SIGPIPE);
  CHECK(count(unread.output, "]:y\n") == 1);
  CHECK(contains(unread.output, "nobody reads the output any more"));
  const auto full = shell(start + " sh -c 'echo a; echo b' >/dev/full");
  INFO(full.output);
  CHECK(full.code == 1);
  CHECK(count(full.output, "No space left on device") == 1);
  const auto closed = shell(start + " sh -c 'echo a; echo b' >&-");
  INFO(closed.output);
  CHECK(closed.code == 1);
  CHECK(count(closed.output, "Bad file descriptor") == 1);
}

// What a rank leaves behind holds the pipe that its output comes through: its end is the rank's, and not the
// pipe's.
TEST_CASE("a grandchild that holds a rank's output does not hold up the end") {
  Launcher launcher(
      "--nproc-per-node 2 -t 3 --log-dir $OUT/logs sh -c 'setsid sh -c \"touch $OUT/left.$RANK; exec sleep "
      "1000\" & sleep 1000 & while [ ! -e $OUT/left.$RANK ]; do sleep 0.05; done; echo said'");
  CHECK(launcher.wait() == 0);
  CHECK(count(launcher.output(), "]:said") == 2);
  CHECK(launcher.processes().size() == 2);  // those that left their group
}

TEST_CASE("flags and programs that make no sense are refused, with what to do") {
  const struct {
    int code;
    const char* words;
    const char* said;
  } cases[] = {
      {2, "", "no program is given"},
      {2, "--bogus x", "there is no such flag (see troupe run --help"},
      {2, "--numa-binding node x", "troupe has no such flag yet (start the program under numactl"},
      {2, "--nproc-per-node 0 x", "it is not 1 to 4096"},
      {2, "--nproc-per-node -1 x", "it is not 1 to 4096"},
      {2, "--nproc-per-node many x", "it is not 1 to 4096"},
      {2, "--nproc-per-node abc x", "--nproc-per-node abc: it is not 1 to 4096, auto, cpu or gpu"},
      {2, "--nproc-per-node gpu x", "no GPU"},
      {2, "--nproc-per-node 2 --local-ranks-filter 7 x", "local rank 7 is none of 0 to 1"},
      {2, "\"$(printf -- '--\\033')\" x", "'--\\x1b'"},
      {2, "--nnodes 2:1 x", "MIN is above MAX"},
      {2, "--nnodes 2 x", "nobody says where they are"},
      {2, "--nnodes 2 --node-rank 0 x", "nobody says where node rank 0 is"},
      {2, "--nnodes 2 --node-rank 2 --master-addr 127.0.0.1 x", "not below --nnodes"},
      {2, "--nnodes 2 --node-rank 1 --master-addr nobody.invalid x", "--master-addr nobody.invalid: "},
      {2, "--nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --max-restarts 1 x", "do not know of each other"},
      {2, "--standalone --nnodes 2 x", "standalone is one node"},
      {2, "--nnodes 1:2 --node-rank 0 --master-addr 127.0.0.1 x", "give --address HOST:PORT"},
      {2, "--address nonsense x", "give HOST:PORT of the head"},
      {2, "--address 127.0.0.1:1 --node-rank 0 x", "the cluster knows its nodes"},
      {2, "-m --no-python x", "a module is run by Python"},
      {2, "-t 9 x", "names no streams"},
      {2, "--max-restarts -1 x", "--max-restarts: '-1' is not a whole number of 0 to 1000000000"},
      {2, "--max-restarts 99999999999999 x", "'99999999999999' is not a whole number of 0 to"},
      {2, "--node-rank -1 x", "--node-rank: '-1' is not a whole number of 0 to 4095"},
      {2, "--master-port 0 x", "master-port"},
      {2, "--log-limit 0 x", "--log-limit: '0' is not a whole number of 1 to 1048576"},
      {1, "/no/such/program", "cannot start /no/such/program: No such file or directory"},
      {1, "no-such-program", "no folder of PATH has it (install it"},
      {1, "/etc/passwd", "it is not executable (chmod +x it"},
      {1, "/etc", "it is a folder"},
      {1, "/no/such.py", "cannot start /no/such.py: No such file"},
  };
  for (const auto& one : cases) {
    INFO(one.words);
    const auto ran = run(one.words);
    INFO(ran.output);
    CHECK(ran.code == one.code);
    CHECK(contains(ran.output, one.said));
  }
  TempFolder folder;
  const auto empty = shell(": >'" + folder.path() + "/none'; chmod +x '" + folder.path() +
                           "/none'; " TROUPE_CLI " run '" + folder.path() + "/none'");
  CHECK(empty.code == 1);
  CHECK(contains(empty.output, "/none: it is an empty file (0 bytes) (build or copy it again)"));
  const auto unwritable = run("true", "TMPDIR=/proc");
  CHECK(unwritable.code == 1);
  CHECK(contains(unwritable.output, "cannot make a folder in /proc"));
  CHECK(contains(unwritable.output, "set TMPDIR"));
  CHECK(contains(run("--rdzv-backend c10d --rdzv-endpoint localhost:0 true").output, "needless"));
  const auto help = run("--help");
  CHECK(help.code == 0);
  CHECK(contains(help.output, "troupe run --nproc-per-node 2 train.py"));
}

TEST_CASE("a port where somebody listens is refused before anything starts") {
  const auto held = HeldPort::hold(0).value();
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::listen(listener.get(), 1) == 0);  // at a port of its own
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size);
  const std::string port = std::to_string(ntohs(reinterpret_cast<sockaddr_in*>(&at)->sin_port));
  const auto ran = run("--master-port " + port + " sh -c 'echo started'");
  CHECK(ran.code == 1);
  CHECK(contains(ran.output, "cannot use port " + port));
  CHECK_FALSE(contains(ran.output, "started"));
}

TEST_CASE("two hosts start their own ranks of one world, without a cluster") {
  const std::string port = std::to_string(HeldPort::hold(0).value().port());
  const auto ran = run("--nnodes 2 --nproc-per-node 2 --node-rank 1 --master-addr 127.0.0.1 --master-port " +
                       port + " sh -c 'echo $RANK $WORLD_SIZE $GROUP_RANK $MASTER_PORT $GLOO_SOCKET_IFNAME'");
  CHECK(sorted_lines(ran.output) ==
        std::vector<std::string>{"2 4 1 " + port + " lo", "3 4 1 " + port + " lo"});
}

// launch::spawn.

namespace {

struct Settings {
  std::string folder;
  std::vector<int> numbers;
};

void leave_note(int rank, const Settings& settings, double factor) {
  std::ostringstream note;
  note << std::getenv("RANK") << " of " << std::getenv("WORLD_SIZE") << " "
       << settings.numbers.at(1) * factor;
  write_file(settings.folder + "/" + std::to_string(rank), note.str());
}
void throw_in_one(int rank, std::string folder) {
  if (rank == 1) throw std::out_of_range("no such number");
  write_file(folder + "/" + std::to_string(::getpid()), "");
  ::pause();
}
void crash_in_one(int rank) {
  ::signal(SIGSEGV, SIG_DFL);  // a sanitizer makes an exit code of it
  if (rank == 0) ::raise(SIGSEGV);
  ::pause();
}
void exit_with(int, int code) {
  std::_Exit(code);
}

}  // namespace

TEST_CASE("spawn runs a function with its index, its arguments and a rank's environment") {
  TempFolder folder;
  launch::spawn<&leave_note>(3, Settings{folder.path(), {1, 5}}, 2.5);
  CHECK(names_in(folder.path()) == std::set<std::string>{"0", "1", "2"});
  CHECK(read_file(folder.path() + "/2") == "2 of 3 12.5");
}

TEST_CASE("spawn throws what the first failure was, and ends the others") {
  TempFolder folder;
  CHECK(message_of<TaskFailed>([&] {
          launch::spawn<&throw_in_one>(2, folder.path());
        }).find("std::out_of_range: no such number") != std::string::npos);
  for (const auto& pid : names_in(folder.path())) CHECK_FALSE(is_alive(std::atoi(pid.c_str())));
  try {
    launch::spawn<&crash_in_one>(2);
    FAIL("it returned");
  } catch (const launch::ProcessEnded& ended) {
    CHECK(ended.rank == 0);
    CHECK(ended.signal == SIGSEGV);
    CHECK(
        contains(ended.what(),
                 "crash_in_one in rank 0 did not return: its process ended: killed by signal 11 (SIGSEGV)"));
  }
  try {
    launch::spawn<&exit_with>(1, 7);
    FAIL("it returned");
  } catch (const launch::ProcessEnded& ended) {
    CHECK(ended.exit_code == 7);
  }
  CHECK_THROWS_AS(launch::spawn<&exit_with>(1, 0), launch::ProcessEnded);  // it did not return either
  CHECK_THROWS_AS(launch::spawn<&exit_with>(0, 0), BadConfig);
  CHECK(children(::getpid()).empty());
}

}  // namespace launch_test
