// Submitted jobs over two nodes started by hand: real programs, the command line, a head and a node that are
// killed.
#include "troupe/jobs.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "runtime/node/package.hpp"
#include "scheduler/init/cluster_folder.hpp"
#include "tests/e2e/support.hpp"
#include "troupe/session.hpp"

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

/// A head with a node ("one") and a second node ("two") of a folder of its own, of 4 CPUs each.
struct Cluster {
  Cluster() : Cluster(0) {  // whatever fails from here on, the destructor runs
    std::string path = (fs::temp_directory_path() / "troupe-jobs-XXXXXX").string();
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    root = path;
    started(troupe("start --head --port 0 --cpus 4 --gpus 0 --name one --detach --folder " + root + "/a"));
    address = slurp(root + "/a/address");
    address.pop_back();
    started(troupe("token --folder " + root + "/a --output " + root + "/token"));
    started(troupe("start --address " + address + " --cpus 4 --gpus 0 --name two --detach --token-file " +
                   root + "/token --folder " + root + "/b"));
  }
  ~Cluster() {
    if (root.empty()) return;
    troupe("stop --folder " + root + "/b");
    troupe("stop --folder " + root + "/a");
    fs::remove_all(root);
  }
  explicit Cluster(int) {}
  static void started(const Ran& ran) {
    INFO(ran.output);
    REQUIRE(ran.code == 0);
  }
  Ran troupe(const std::string& words) const { return shell(TROUPE_CLI " " + words); }
  /// `command` of troupe job, which knows the cluster by this folder.
  std::string line(const std::string& command, const std::string& words) const {
    return TROUPE_CLI " job " + command + " --folder " + root + "/a " + words;
  }
  Ran job(const std::string& command, const std::string& words = "") const {
    return shell(line(command, words));
  }
  std::string detached(const std::string& words) const {
    const Ran ran = job("submit --detach", words);
    INFO(ran.output);
    REQUIRE(ran.code == 0);
    REQUIRE(count(ran.output, "\n") == 1);  // the id alone
    return ran.output.substr(0, ran.output.size() - 1);
  }
  bool is(const std::string& id, const std::string& state) const {
    return job("status", id + " -o json").output.find("\"status\": \"" + state + "\"") != std::string::npos;
  }
  pid_t supervisor(const std::string& folder) const {
    return ClusterFolder::open(root + "/" + folder).value().running().at(0).pid;
  }
  pid_t head() const { return children(supervisor("a"), "troupe-head").at(0); }
  void kill_head() const {
    const pid_t before = head();
    ::kill(before, SIGKILL);
    REQUIRE(eventually([&] {
      const auto heads = children(supervisor("a"), "troupe-head");
      return heads.size() == 1 && heads[0] != before;
    }));
  }

  std::string root;
  std::string address;
};

struct Guest {
  int pid() { return ::getpid(); }
  std::string hash() { return hash_own_executable().value(); }
};

std::string own_path() {
  return fs::read_symlink("/proc/self/exe").string();
}

}  // namespace

TEST_CASE("jobs run on both nodes, wait in order with a reason, are stopped, and exit with their code",
          "[jobs]") {
  const Cluster cluster;
  const Ran attached = cluster.job(
      "submit", "--env GREETING='a b' --name first -- sh -c 'echo \"$GREETING\"; echo err >&2; exit 3'");
  INFO(attached.output);
  CHECK(attached.code == 3);
  CHECK(attached.output.find("a b\n") != std::string::npos);
  CHECK(attached.output.find("err\n") != std::string::npos);
  CHECK(attached.output.find("FAILED: exit code 3") != std::string::npos);

  const std::string block =
      "--num-cpus 4 -- sh -c 'trap \"exit 0\" TERM; echo ready; while :; do sleep 0.05; done'";
  const std::string one = cluster.detached(block), two = cluster.detached(block),
                    third = cluster.detached(block);
  CHECK(eventually([&] { return cluster.is(one, "RUNNING") && cluster.is(two, "RUNNING"); }));
  const auto status = cluster.job("status", third).output;
  CHECK(status.find("QUEUED") != std::string::npos);
  for (const char* part : {"no node has 4 CPU free: ", "one has 0 of 4", "two has 0 of 4"})
    CHECK(status.find(part) != std::string::npos);
  CHECK(cluster.job("stop", third).code == 0);
  CHECK(cluster.job("wait", third).code == 143);
  CHECK(eventually([&] { return cluster.job("logs", one).output == "ready\n"; }));
  CHECK(cluster.job("stop", one).code == 0);
  const Ran stopped = cluster.job("wait", one);
  CHECK(stopped.code == 143);
  CHECK(stopped.output.find("STOPPED: it was told to stop: exit code 0") != std::string::npos);

  // It ignores SIGTERM, and leaves a process in a session of its own: both are gone when it has ended.
  const std::string file = cluster.root + "/orphan";
  const std::string stubborn = cluster.detached("-- sh -c 'trap \"\" TERM; setsid sh -c \"echo \\$\\$ > " +
                                                file + "; sleep 600\" & sleep 600'");
  REQUIRE(eventually([&] { return !slurp(file).empty(); }));
  cluster.job("stop", stubborn);
  CHECK(cluster.job("wait", stubborn).code == 137);
  CHECK_FALSE(is_alive(std::stoi(slurp(file))));

  const std::string killed = cluster.detached("-- sh -c 'kill -SEGV $$'");
  const Ran signal = cluster.job("wait", killed);
  CHECK(signal.code == 139);
  CHECK(signal.output.find("FAILED: killed by signal 11 (SIGSEGV)") != std::string::npos);
  const auto list = cluster.job("list").output;
  CHECK(count(list, "\n") == 7);
  CHECK(count(list, "FAILED") == 2);
  CHECK(cluster.job("list", "-o json").output.find("\"driver_exit_code\": 139") != std::string::npos);
  cluster.job("stop", two);

  // Ctrl-C without a terminal to ask on: who followed is told that the job goes on.
  const Ran left =
      shell(cluster.line("submit", "--id watched -- sleep 600") + " & pid=$!; for i in $(seq 600); do " +
            cluster.line("status", "watched") +
            " | grep -q RUNNING && break; sleep 0.05; done; kill -INT $pid; wait $pid; echo code $?");
  CHECK(left.output.find("job watched goes on: troupe job logs --follow watched") != std::string::npos);
  CHECK(left.output.find("code 130") != std::string::npos);
  CHECK(cluster.is("watched", "RUNNING"));
  cluster.job("stop", "watched");
  CHECK(cluster.job("wait", "watched").code == 143);
}

TEST_CASE(
    "the head is killed: who follows goes on following, history stays, and a job submitted meanwhile runs "
    "once",
    "[jobs]") {
  const Cluster cluster;
  const std::string go = cluster.root + "/go", runs = cluster.root + "/runs";
  const std::string id =
      cluster.detached("-- sh -c 'echo before; while [ ! -e " + go + " ]; do sleep 0.05; done; echo after'");
  FILE* follow = ::popen(("exec 2>&1; " + cluster.line("logs --follow", id)).c_str(), "re");
  REQUIRE(follow != nullptr);
  char line[256] = {};
  REQUIRE(std::fgets(line, sizeof line, follow) != nullptr);
  CHECK(std::string(line) == "before\n");
  ::kill(cluster.head(), SIGKILL);
  // The head is away: this is asked again until one answers, under one id.
  const std::string once = cluster.detached("--id once -- sh -c 'echo run >> " + runs + "'");
  CHECK(cluster.job("submit --detach", "--id once -- sh -c 'echo run >> " + runs + "'").code == 0);
  write_file(go, "");
  std::string rest;
  while (std::fgets(line, sizeof line, follow) != nullptr) rest += line;
  CHECK(::pclose(follow) == 0);
  CHECK(rest == "after\njob " + id + " SUCCEEDED: exit code 0\n");
  CHECK(cluster.job("wait", once).code == 0);
  cluster.kill_head();
  CHECK(slurp(runs) == "run\n");
  CHECK(cluster.is(id, "SUCCEEDED"));
  CHECK(cluster.job("logs", id + " --tail 1").output == "after\n");
}

TEST_CASE("50 MB of random bytes are written as fast as the disk takes them, whoever reads slowly",
          "[jobs]") {
  const Cluster cluster;
  const std::string file = cluster.root + "/bytes";
  const std::string id = cluster.detached("-- sh -c 'head -c 50000000 /dev/urandom | tee " + file + "'");
  FILE* follow = ::popen(cluster.line("logs --follow", id).c_str(), "re");
  REQUIRE(follow != nullptr);
  CHECK(cluster.job("wait", id).code == 0);  // while nobody reads what the follower writes
  std::string bytes(60'000'000, '\0');
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), follow));
  CHECK(::pclose(follow) == 0);
  CHECK(bytes.size() == 50'000'000);
  CHECK(bytes == slurp(file));
}

// Was: the logs of a job that writes as fast as they are read never ended.
TEST_CASE("logs without --follow end where the output ended when they were asked for", "[jobs]") {
  const Cluster cluster;
  const std::string id = cluster.detached("-- yes");
  REQUIRE(eventually([&] { return cluster.is(id, "RUNNING"); }));
  CHECK(shell("timeout 60 " + cluster.line("logs", "--tail 3 " + id) + " >/dev/null").code == 0);
  CHECK(shell("timeout 60 " + cluster.line("logs", id) + " >/dev/null").code == 0);
  cluster.job("stop", id);
}

TEST_CASE("a program of troupe joins the cluster through its node, and its executable travels from there",
          "[jobs]") {
  const Cluster cluster;
  JobClient jobs({.address = cluster.address, .folder = cluster.root + "/a"});
  const std::string id =
      jobs.submit({.program = own_path(), .args = {"a driver that was submitted"}, .num_cpus = 1});
  const JobInfo ended = jobs.wait(id);
  std::string output;
  jobs.read_output(id, {}, [&](const JobOutput& part) { output += part.bytes; });
  INFO(output << ended.why);
  CHECK(ended.exit_code == 0);
  CHECK(output.find("one two the same executable") != std::string::npos);
  CHECK(eventually([&] {  // no gateway was needed, and none is left
    const auto status = cluster.troupe("status --folder " + cluster.root + "/a").output;
    return count(status, "alive") == 2 && status.find("(driver)") == std::string::npos;
  }));
}

TEST_CASE("a driver that was submitted", "[.program]") {
  auto session = init(0, nullptr);
  std::string names;
  bool same = true;
  for (const auto& node : session.nodes()) {
    auto guest = session.spawn<Guest>({.num_cpus = 1, .isolated = true, .node = node.id});
    same = same && guest.call<&Guest::hash>().get(60s) == hash_own_executable().value();
    names += node.name + " ";
  }
  if (names == "two one ") names = "one two ";
  std::printf("%s%s\n", names.c_str(), same ? "the same executable" : "another executable");
}

TEST_CASE("a node is killed: its job fails with the reason, or runs again elsewhere", "[jobs]") {
  const Cluster cluster;
  const std::string there = cluster.root + "/there";
  // Node "one" is full: both go to "two".
  const std::string full = cluster.detached("--num-cpus 4 -- sleep 600");
  REQUIRE(eventually([&] { return cluster.is(full, "RUNNING"); }));
  const bool on_one = cluster.job("status", full).output.find("one (") != std::string::npos;
  const std::string other = on_one ? "b" : "a";
  const std::string lost = cluster.detached("--num-cpus 1 -- sleep 601");
  const std::string again = cluster.detached("--num-cpus 1 --retries 1 -- sh -c 'if mkdir " + there +
                                             "; then echo first; sleep 602; else echo second; fi'");
  REQUIRE(eventually([&] { return cluster.is(lost, "RUNNING") && fs::exists(there); }));
  ::kill(children(cluster.supervisor(other), "troupe-node").at(0), SIGKILL);
  const Ran failed = cluster.job("wait", lost);
  CHECK(failed.code == 1);
  CHECK(failed.output.find("is dead") != std::string::npos);
  const Ran succeeded = cluster.job("wait", again);
  INFO(succeeded.output);
  CHECK(succeeded.code == 0);
  CHECK(cluster.job("logs", again).output.find("second") != std::string::npos);
  CHECK(eventually([] { return shell("pgrep -fx 'sleep 60[12]'").output.empty(); }));
  cluster.job("stop", full);
}

TEST_CASE("bad jobs: one error, and nothing is left", "[jobs]") {
  const TemporaryFolder nowhere;
  const Cluster cluster;
  const auto fails = [&](const std::string& command, const std::string& words, int code,
                         const std::string& says) {
    const Ran ran = cluster.job(command, words);
    INFO(command << " " << words << ": " << ran.output);
    CHECK(ran.code == code);
    CHECK(ran.output.find(says) != std::string::npos);
  };
  const std::string plain = nowhere.path() + "/plain", foreign = nowhere.path() + "/foreign";
  std::ofstream(plain) << "#!/bin/sh\n";
  std::string elf = slurp("/bin/true").substr(0, 64);
  elf[18] = static_cast<char>(elf[18] ^ 0x7f);
  std::ofstream(foreign) << elf;
  ::chmod(foreign.c_str(), 0700);
  fails("submit", "", 2, "name the program after --");
  fails("submit", "-- " + nowhere.path() + "/none", 1, "none: No such file or directory");
  fails("submit", "-- " + plain, 1, "is not executable");
  fails("submit", "-- " + foreign, 1, "is of another architecture");
  fails("submit", "--working-dir " + nowhere.path() + "/none -- true", 1, "its working directory");
  fails("submit", "--name \"$(printf 'a\\001b')\" -- true", 1, "control character");
  fails("submit", "--env =x -- true", 1, "is no NAME=VALUE");
  fails("submit", "--num-cpus nan -- true", 1, "is no number of CPUs");
  fails("submit", "--num-gpus 1.5 -- true", 1, "1.5 GPUs are neither");
  fails("submit", "--retries -1 -- true", 2, "--retries");
  for (const char* command : {"status", "logs", "stop", "wait"})
    fails(command, "job-none", 1, "there is no job job-none");
  fails("list", "--address 127.0.0.1:1", 1, "127.0.0.1:1");
  fails("nonsense", "", 2, "");
  CHECK(count(cluster.job("list").output, "\n") == 1);
  CHECK(
      shell(TROUPE_CLI " job list --folder " + nowhere.path() + "/none").output.find("troupe start --head") !=
      std::string::npos);

  const std::string first = cluster.detached("--name train -- sleep 600");
  fails("submit", "--name train -- true", 1, "has the name train");
  fails("submit", "--id " + first + " -- true", 1, "is that of another job");
  fails("submit", "-- no-such-program", 1, "it is in no folder of the node's PATH");
  const std::string never = cluster.detached("--num-cpus 1000 -- true");
  CHECK(cluster.job("status", never).output.find("no node has 1000 CPU at all") != std::string::npos);
  CHECK(cluster.job("wait", cluster.detached("-- true")).code == 0);  // it held up nobody
  cluster.job("stop", never);
  cluster.job("stop", first);
}
