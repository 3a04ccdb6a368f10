// troupe run on the nodes of a cluster: real processes, keys and sockets.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>

#include "scheduler/init/cluster_folder.hpp"
#include "tests/e2e/support.hpp"

namespace launch_cluster_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

/// A head with a node, "one", and a second node, "two". Ranks find the folder as $OUT, and carry it as a
/// mark.
struct Cluster {
  Cluster() {
    ::setenv("OUT", root.path().c_str(), 1);
    fs::create_directory(root.path() + "/tmp");
    ::setenv("TMPDIR", (root.path() + "/tmp").c_str(), 1);
    const auto head = troupe("start --head --port 0 --cpus 2 --name one --detach --folder " + folder("a"));
    ::unsetenv("TMPDIR");
    INFO(head.output);
    REQUIRE(head.code == 0);
    address = read_file(folder("a") + "/address");
    address.pop_back();
    REQUIRE(troupe("token --folder " + folder("a") + " --output " + root.path() + "/token").code == 0);
    start_two();
  }
  ~Cluster() {
    stop_two();
    troupe("stop --folder " + folder("a"));
  }
  void start_two() {
    const auto node = troupe("start --address " + address + " --cpus 2 --name two --detach --token-file " +
                             root.path() + "/token --folder " + folder("b"));
    INFO(node.output);
    REQUIRE(node.code == 0);
  }
  void stop_two() { troupe("stop --folder " + folder("b")); }
  /// kill -9 of the node and of what would start it again.
  void kill_two() {
    const pid_t supervisor = ClusterFolder::open(folder("b")).value().running().at(0).pid;
    const auto nodes = children(supervisor, "troupe-node");
    REQUIRE(nodes.size() == 1);
    ::kill(supervisor, SIGKILL);
    ::kill(nodes[0], SIGKILL);
  }
  std::string folder(const std::string& name) const { return root.path() + "/" + name; }
  Ran troupe(const std::string& words) const { return shell("timeout 120 " TROUPE_CLI " " + words); }
  std::string run_words(const std::string& words) const {
    return "run --address " + address + " --folder " + folder("a") + " " + words;
  }
  Ran run(const std::string& words) const { return troupe(run_words(words)); }
  /// What ranks wrote to $OUT/NAME.
  std::string wrote(const std::string& name) const { return read_file(folder(name)); }
  /// Ranks and what they have forked, on all nodes.
  std::size_t sleepers() const {
    std::size_t found = 0;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      if (pid > 0 && is_alive(pid) && read_file(entry.path() / "comm") == "sleep\n" &&
          read_file(entry.path() / "environ").find("OUT=" + root.path() + '\0') != std::string::npos)
        ++found;
    }
    return found;
  }

  TempFolder root;
  std::string address;
};

/// `troupe run` that goes on beside the test; its output goes to $OUT/said.
struct Beside {
  Beside(const Cluster& cluster, const std::string& words) : said(cluster.folder("said")) {
    pid = ::fork();
    if (pid != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = ::open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execl("/bin/sh", "sh", "-c", ("exec " TROUPE_CLI " " + cluster.run_words(words)).c_str(), nullptr);
    ::_exit(127);
  }
  ~Beside() {
    if (pid > 0) ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0);
  }
  int wait() {
    int status = 0;
    INFO(read_file(said));
    REQUIRE(eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, 90s));
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string said;
  pid_t pid = -1;
};

}  // namespace

TEST_CASE("ranks on two nodes are one world, and a rank that fails there is named") {
  const Cluster cluster;
  const auto ran = cluster.run(
      "--nnodes 2 --nproc-per-node 2 sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $GROUP_RANK "
      "$GROUP_WORLD_SIZE $MASTER_ADDR ${#TROUPE_JOB_KEY}; echo $MASTER_PORT >> $OUT/ports'");
  INFO(ran.output);
  CHECK(ran.code == 0);
  CHECK(
      sorted_lines(ran.output) ==
      std::vector<std::string>{"[one] 0 0 4 0 2 127.0.0.1 64", "[one] 1 1 4 0 2 127.0.0.1 64",
                               "[one] troupe run: each rank has OMP_NUM_THREADS=1, so that ranks on one node "
                               "and on several give the same bits; set it where speed counts more, in a "
                               "cluster in its nodes' environment",
                               "[two] 2 0 4 1 2 127.0.0.1 64", "[two] 3 1 4 1 2 127.0.0.1 64"});
  const auto ports = sorted_lines(cluster.wrote("ports"));
  CHECK((ports.size() == 4 && ports.front() == ports.back()));

  const auto failed = cluster.run(
      "--nnodes 2 --exit-code first --max-restarts 1 sh -c 'echo $RANK >> $OUT/started; "
      "[ $RANK = 1 ] && exit 3; sleep 1000'");
  INFO(failed.output);
  CHECK(failed.code == 3);
  CHECK(std::regex_search(failed.output,
                          std::regex("rank 1 \\(local rank 0 on two\\), process [0-9]+: exit code 3")));
  CHECK(failed.output.find("restart 1 of 1") != std::string::npos);
  CHECK(eventually([&] { return cluster.sleepers() == 0; }));
  CHECK(eventually([&] { return fs::is_empty(cluster.folder("tmp")); }));

  const auto missing = cluster.run("--nnodes 2 /no/such/program");
  CHECK(missing.code == 1);
  CHECK(missing.output.find("cannot start /no/such/program: No such file or directory") != std::string::npos);
  const Beside large(cluster, "--nnodes 1 --nproc-per-node 3 true");
  CHECK(eventually([&] {
    return read_file(large.said).find("node one is left out: 2 CPUs and 0 GPUs are too few") !=
           std::string::npos;
  }));
}

// Was: endless output filled the driver's link with 256 MiB, for which its node killed it; ranks started
// again.
TEST_CASE("ranks on two nodes whose output has no reader any more end as SIGPIPE ends programs") {
  const Cluster cluster;
  const std::string words = "timeout 90 " TROUPE_CLI " " + cluster.run_words("--nnodes 2 ");
  const auto unread = shell("bash -c '" + words + "yes | head -1; exit ${PIPESTATUS[0]}'");
  INFO(unread.output);
  CHECK(unread.code == 128 + SIGPIPE);
  CHECK(unread.output.find("] y\n") != std::string::npos);
  CHECK(unread.output.find("is gone") == std::string::npos);
  const auto full = shell(words + "echo a >/dev/full");
  INFO(full.output);
  CHECK(full.code == 1);
  CHECK(count(full.output, "No space left on device") == 1);
}

#ifdef ALL_REDUCE  // an example: not in every build
TEST_CASE("the ranks of two nodes form a group of troupe's, with the run's key") {
  const Cluster cluster;
  const auto ran = cluster.run("--nnodes 2 --nproc-per-node 2 " ALL_REDUCE);
  INFO(ran.output);
  CHECK(ran.code == 0);
  CHECK(ran.output.find("[two] rank 3 of 4: 4\n") != std::string::npos);
}
#endif

TEST_CASE("a node that is killed restarts the run with the survivor, and one that comes lets it grow") {
  Cluster cluster;
  Beside run(cluster,
             "--nnodes 1:2 sh -c 'echo $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT >> $OUT/worlds; "
             "while [ ! -e $OUT/end ]; do sleep 0.1; done'");
  const auto worlds = [&](const std::string& expected) {
    const bool came = eventually([&] { return cluster.wrote("worlds") == expected; }, 60s);
    INFO(read_file(run.said));
    INFO(cluster.wrote("worlds"));
    CHECK(came);
  };
  worlds("2 0\n2 0\n");
  cluster.kill_two();
  worlds("2 0\n2 0\n1 0\n");
  cluster.start_two();
  worlds("2 0\n2 0\n1 0\n2 0\n2 0\n");
  write_file(cluster.folder("end"), "");
  CHECK(run.wait() == 0);
  CHECK(read_file(run.said).find("node two is gone") != std::string::npos);
  CHECK(read_file(run.said).find("a node came") != std::string::npos);
}

TEST_CASE("a launcher that is told to end, or killed, takes the ranks of all nodes with it") {
  const Cluster cluster;
  Beside told(cluster, "--nnodes 2 sh -c 'sleep 1000 & wait'");
  REQUIRE(eventually([&] { return cluster.sleepers() == 2; }, 60s));
  ::kill(told.pid, SIGINT);
  CHECK(told.wait() == 1);
  CHECK(cluster.sleepers() == 0);
  Beside run(cluster, "--nnodes 2 sh -c 'sleep 1000 & wait'");
  REQUIRE(eventually([&] { return cluster.sleepers() == 2; }, 60s));
  ::kill(run.pid, SIGKILL);
  CHECK(eventually([&] { return cluster.sleepers() == 0; }, 60s));
  CHECK(eventually([&] { return fs::is_empty(cluster.folder("tmp")); }));
}

}  // namespace launch_cluster_test
