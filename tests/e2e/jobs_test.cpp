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
#include "tests/e2e/two_nodes.hpp"
#include "troupe/session.hpp"

namespace jobs_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

struct Cluster : TwoNodes {
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
  pid_t head() const { return children(supervisor("a"), "troupe-head").at(0); }
  void kill_head() const {
    const pid_t before = head();
    ::kill(before, SIGKILL);
    REQUIRE(eventually([&] {
      const auto heads = children(supervisor("a"), "troupe-head");
      return heads.size() == 1 && heads[0] != before;
    }));
  }
};

struct Guest {
  int pid() { return ::getpid(); }
  std::string folder() { return fs::current_path().string(); }
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
  // What comes later and asks for the same waits behind it; what asks for more urgently goes before.
  const std::string small = cluster.detached("--num-cpus 1 -- sh -c 'exit 7'");
  const std::string urgent = cluster.detached("--num-cpus 4 --priority 3 -- true");
  const auto why = cluster.job("why", small + " -o json").output;
  for (const char* part : {"\"verdict\": \"waits\"", "\"position\": 3", "\"need\": 1.0",
                           "\"free_total\": 0.0", "\"1 CPU: 0 of 4 is free\""})
    CHECK(why.find(part) != std::string::npos);
  CHECK(why.find(urgent) < why.find(third));
  CHECK(why.find("\"job\": \"" + one + "\"") != std::string::npos);
  CHECK(cluster.job("why", third).output.find("job " + urgent + " starts before it") != std::string::npos);
  CHECK(cluster.job("stop", urgent).code == 0);
  CHECK(cluster.job("stop", third).code == 0);
  CHECK(cluster.job("wait", third).code == 143);
  CHECK(eventually([&] { return cluster.job("logs", one).output == "ready\n"; }));
  CHECK(cluster.job("stop", one).code == 0);
  CHECK(cluster.job("wait", small).code == 7);
  const Ran stopped = cluster.job("wait", one);
  CHECK(stopped.code == 143);
  CHECK(stopped.output.find("STOPPED: it was told to stop: exit code 0") != std::string::npos);

  // It ignores SIGTERM, and leaves a process in a session of its own: both are gone when it has ended.
  const std::string file = cluster.root + "/orphan";
  const std::string stubborn = cluster.detached("-- sh -c 'trap \"\" TERM; setsid sh -c \"echo \\$\\$ > " +
                                                file + "; sleep 600\" & sleep 600'");
  REQUIRE(eventually([&] { return !read_file(file).empty(); }));
  cluster.job("stop", stubborn);
  CHECK(cluster.job("wait", stubborn).code == 137);
  CHECK_FALSE(is_alive(std::stoi(read_file(file))));

  const std::string killed = cluster.detached("-- sh -c 'kill -SEGV $$'");
  const Ran signal = cluster.job("wait", killed);
  CHECK(signal.code == 139);
  CHECK(signal.output.find("FAILED: killed by signal 11 (SIGSEGV)") != std::string::npos);
  const auto list = cluster.job("list").output;
  CHECK(count(list, "\n") == 9);
  CHECK(count(list, "FAILED") == 3);
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
  CHECK(read_file(runs) == "run\n");
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
  CHECK(bytes == read_file(file));
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

// Was: without --follow the last attempt alone was shown, without a word of those before it.
TEST_CASE("logs show all attempts, or the one that is asked for", "[jobs]") {
  const Cluster cluster;
  const std::string id = cluster.detached("--retries 1 -- sh -c 'echo hello; exit 3'");
  CHECK(cluster.job("wait", id).code == 3);
  const std::string all = cluster.job("logs", id).output;
  CHECK(count(all, "hello\n") == 2);
  CHECK(all.find("attempt 2 of 2 begins") != std::string::npos);
  CHECK(cluster.job("logs", "--attempt 1 " + id).output == "hello\n");
  CHECK(cluster.job("logs", "--attempt 2 --tail 1 " + id).output == "hello\n");
  const Ran none = cluster.job("logs", "--attempt 3 " + id);
  CHECK(none.code == 1);
  CHECK(none.output.find("it has had 2 attempts") != std::string::npos);
}

TEST_CASE("a program of troupe joins the cluster through its node, and its executable travels from there",
          "[jobs]") {
  const Cluster cluster;
  JobClient jobs({.address = cluster.address, .folder = cluster.root + "/a"});
  const std::string go = cluster.root + "/go", own = " --folder " + cluster.root + "/a";
  const std::string id = jobs.submit({.program = own_path(),
                                      .args = {"a driver that was submitted"},
                                      .name = "w",
                                      .env = {{"GO", go}},
                                      .num_cpus = 1});
  // Was: its actors were under the name of its session, which nothing said was its.
  for (const std::string& called : {std::string("w"), id})
    CHECK(eventually([&] {
      return cluster.troupe("actor list --job " + called + own).output.find("Guest") != std::string::npos;
    }));
  const Ran shown = cluster.job("status", "w");
  INFO(shown.output);
  CHECK(shown.output.find("\nsession ") != std::string::npos);
  CHECK(cluster.job("status", "-o json w").output.find("\"sessions\": [\n") != std::string::npos);
  CHECK(cluster.troupe("status" + own).output.find("running (submitted job " + id + ")") !=
        std::string::npos);
  std::ofstream(go) << "go";
  const JobInfo ended = jobs.wait(id);
  std::string output;
  jobs.read_output(id, {}, [&](const JobOutput& part) { output += part.bytes; });
  INFO(output << ended.why);
  CHECK(ended.exit_code == 0);
  CHECK(output.find("one two the same executable and folder") != std::string::npos);
  CHECK(eventually([&] {  // no gateway was needed, and none is left
    const auto status = cluster.troupe("status --folder " + cluster.root + "/a").output;
    return count(status, "alive") == 2 && status.find("(driver)") == std::string::npos;
  }));
}

TEST_CASE("a driver that was submitted", "[.program]") {
  auto session = init(0, nullptr);
  std::string names;
  bool same = true;
  std::vector<ActorHandle<Guest>> guests;
  for (const auto& node : session.nodes()) {
    auto& guest =
        guests.emplace_back(session.spawn<Guest>({.num_cpus = 1, .isolated = true, .node = node.id}));
    same = same && guest.call<&Guest::hash>().get(60s) == hash_own_executable().value() &&
           guest.call<&Guest::folder>().get(60s) == fs::current_path();
    names += node.name + " ";
  }
  CHECK(eventually([] { return fs::exists(std::getenv("GO")); }));
  if (names == "two one ") names = "one two ";
  std::printf("%s%s\n", names.c_str(),
              same ? "the same executable and folder" : "another executable or folder");
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

// Was: a job's program and folder had to be on every node, at the same path.
TEST_CASE("what a job was submitted with travels: it runs after its files are gone, over a head's death",
          "[jobs]") {
  const Cluster cluster;
  const TempFolder here;
  const auto in_here = [&](const std::string& words) {
    const Ran ran = shell("cd " + here.path() + " && " + cluster.line("submit --detach", words));
    INFO(ran.output);
    REQUIRE(ran.code == 0);
    return ran.output.substr(0, ran.output.size() - 1);
  };
  REQUIRE(
      shell("cd " + here.path() +
            " && mkdir -p app/data && cp /bin/cat app/tool && printf 'from the package' > app/data/text && "
            "ln -s data/text app/link && head -c 3000000 /dev/urandom > app/noise && "
            "sha256sum < app/noise > noise.sha && cp /bin/echo alone")
          .code == 0);
  const std::string first = cluster.detached("--num-cpus 4 -- sleep 600"),
                    second = cluster.detached("--num-cpus 4 -- sleep 600");
  const std::string folder = in_here(
      "--num-cpus 1 --working-dir app -- sh -c './tool link; sha256sum < noise; echo new > made; pwd'");
  const std::string tool = in_here("--num-cpus 1 --working-dir app -- ./tool data/text");
  const std::string program = in_here("--num-cpus 1 -- ./alone goes alone");
  CHECK(shell("cd " + cluster.root + "/a/store/packages && ls").output.size() == 2 * 65);  // once each
  const std::string sum = read_file(here.path() + "/noise.sha");
  fs::remove_all(here.path() + "/app");
  fs::remove(here.path() + "/alone");
  cluster.kill_head();
  cluster.job("stop", first);
  cluster.job("stop", second);
  for (const std::string& id : {folder, tool, program}) {
    const Ran ended = cluster.job("wait", id);
    INFO(ended.output << cluster.job("logs", id).output);
    CHECK(ended.code == 0);
  }
  const std::string said = cluster.job("logs", folder).output;
  CHECK(said.starts_with("from the package" + sum));
  CHECK(said.find("/jobs/0/" + folder + "/work\n") != std::string::npos);
  CHECK(cluster.job("logs", tool).output == "from the package");
  CHECK(cluster.job("logs", program).output == "goes alone\n");

  // A folder that the nodes have is run in where it is, and a file that is there is not copied.
  const std::string there = in_here("--node-dir " + here.path() + " -- sh -c 'echo made > made'");
  CHECK(cluster.job("wait", there).code == 0);
  CHECK(read_file(here.path() + "/made") == "made\n");
  const std::string same = in_here("-- /bin/cat /proc/self/cmdline");
  CHECK(cluster.job("wait", same).code == 0);
  CHECK(cluster.job("logs", same).output.starts_with("/bin/cat"));
}

TEST_CASE("the head is killed while a package comes: it is brought again, and the job runs once", "[jobs]") {
  const Cluster cluster;
  const TempFolder here;
  const std::string packages = cluster.root + "/a/store/packages";
  REQUIRE(shell("head -c 100000000 /dev/urandom > " + here.path() + "/noise").code == 0);
  FILE* submitting = ::popen(
      cluster.line("submit --detach", "--id once --working-dir " + here.path() + " -- sha256sum noise")
          .c_str(),
      "re");
  REQUIRE(submitting != nullptr);
  CHECK(eventually([&] { return shell("ls " + packages + "/*.part").code == 0; }));
  cluster.kill_head();
  char id[16] = {};
  CHECK(std::fgets(id, sizeof id, submitting) != nullptr);
  CHECK(std::string(id) == "once\n");
  CHECK(::pclose(submitting) == 0);
  CHECK(cluster.job("wait", "once").code == 0);
  CHECK(cluster.job("logs", "once").output == shell("cd " + here.path() + " && sha256sum noise").output);
  CHECK(shell("ls " + packages).output.size() == 65);
}

// Was: two or three of six were refused, "job ... has the name train and is STARTING".
TEST_CASE("of jobs that replace one name at once each is taken, and the last one runs", "[jobs]") {
  const Cluster cluster;
  const std::string words = "--name train --replace -- sleep 600";
  cluster.detached(words);
  const std::string one = cluster.line("submit --detach", words);
  std::string all;
  for (int i = 0; i < 6; ++i)
    all += one + " >" + cluster.root + "/said" + std::to_string(i) + " 2>&1 & pids=\"$pids $!\"; ";
  all += "for pid in $pids; do wait $pid; echo \"code $?\"; done";
  const Ran ran = shell(all);
  INFO(ran.output);
  for (int i = 0; i < 6; ++i) UNSCOPED_INFO(read_file(cluster.root + "/said" + std::to_string(i)));
  CHECK(count(ran.output, "code 0\n") == 6);
  const std::string jobs = cluster.job("list", "-o json").output;
  CHECK(count(jobs, "\"STOPPED\"") == 6);
  CHECK(count(jobs, "\"submission_id\"") == 7);
}

TEST_CASE("bad jobs: one error, and nothing is left", "[jobs]") {
  const TempFolder nowhere;
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
  std::string elf = read_file("/bin/true").substr(0, 64);
  elf[18] = static_cast<char>(elf[18] ^ 0x7f);
  std::ofstream(foreign) << elf;
  ::chmod(foreign.c_str(), 0700);
  fails("submit", "", 2, "name the program after --");
  fails("submit", "-- " + nowhere.path() + "/none", 1, "none: No such file or directory");
  fails("submit", "-- " + plain, 1, "is not executable");
  fails("submit", "-- " + foreign, 1, "is of another architecture");
  const std::string empty = nowhere.path() + "/empty";
  CHECK(shell(": >" + empty + "; chmod +x " + empty).code == 0);
  fails("submit", "-- " + empty, 1, "empty is an empty file (0 bytes) (build or copy it again)");
  fails("submit", "--node-dir " + nowhere.path() + " -- ./empty", 1, "empty is an empty file (0 bytes)");
  fails("submit", "--working-dir " + nowhere.path() + "/none -- true", 1, "its working directory");
  const std::string folder = nowhere.path() + "/folder";
  fs::create_directories(folder);
  fails("submit", "--working-dir " + folder + " -- ./none", 1, "folder/none: No such file or directory");
  fails("submit", "--working-dir " + folder + " --node-dir /tmp -- true", 2, "give one of them");
  fails("submit", "--node-dir tmp -- true", 2, "is no absolute path");
  fs::create_symlink("/etc", folder + "/etc");
  fails("submit", "--working-dir " + folder + " -- true", 1,
        "folder/etc is a link that leads out of the folder, to /etc");
  fs::remove(folder + "/etc");
  std::ofstream(folder + "/large") << "";
  fs::resize_file(folder + "/large", 11'000'000'000);  // sparse
  fails("submit", "--working-dir " + folder + " -- true", 1, "its files take more than 10000000000 bytes");
  fs::remove(folder + "/large");
  // Was: 60 s without a word, in which no signal ended it.
  const std::string away =
      cluster.line("submit", "--address 127.0.0.1:1 --working-dir " + folder + " -- true");
  CHECK(shell("timeout 40 " + away).code == 1);
  CHECK(shell("timeout --preserve-status -k 3 2 " + away).code == 128 + SIGTERM);
  fails("submit", "--name \"$(printf 'a\\001b')\" -- true", 2, "control character");
  fails("submit", "--env =x -- true", 2, "is no NAME=VALUE");
  fails("submit", "--num-cpus nan -- true", 2, "'nan' is not a number of 0 to 1000000 CPUs");
  fails("submit", "--num-gpus 1.5 -- true", 2, "1.5 GPUs are neither");
  fails("submit", "--retries -1 -- true", 2, "--retries");
  fails("submit", "--priority 99999999999999 -- true", 2,
        "--priority: '99999999999999' is not a whole number");
  fails("submit", "--priority 2000000 -- true", 2, "'2000000' is not a whole number of -1000000 to 1000000");
  for (const char* command : {"status", "why", "logs", "stop", "wait"})
    fails(command, "job-none", 1, "there is no job job-none");
  fails("status", "\"$(printf 'a\\033[31m')\"", 1, "there is no job a\\x1b[31m");
  fails("submit", "--env \"$(printf '\\033=')\" --id / -- true", 2, "its id is not");
  fails("submit", "--retries \"$(printf '\\033')\" -- true", 2, "\\x1b");
  fails("list", "--address 127.0.0.1:1", 1, "127.0.0.1:1");
  fails("nonsense", "", 2, "");
  CHECK(count(cluster.job("list").output, "\n") == 2);  // the one whose program its node alone could see
  CHECK(
      shell(TROUPE_CLI " job list --folder " + nowhere.path() + "/none").output.find("troupe start --head") !=
      std::string::npos);
  CHECK_FALSE(fs::exists(nowhere.path() + "/none"));  // who only asks makes no folder

  const std::string first = cluster.detached("--name train -- sleep 600");
  fails("submit", "--name train -- true", 1, "has the name train");
  fails("submit", "--id " + first + " -- true", 1, "is that of another job");
  fails("submit", "-- no-such-program", 1, "it is in no folder of the node's PATH");
  fails("submit", "--replace -- true", 2, "--replace needs --name");
  const std::string instead = cluster.detached("--name train --replace -- sleep 600");
  CHECK(cluster.is(first, "STOPPED"));
  CHECK(cluster.job("submit --detach", "--name train --replace --id " + instead + " -- sleep 600").code == 0);
  CHECK_FALSE(cluster.is(instead, "STOPPED"));  // it is that job
  cluster.job("stop", instead);
  const std::string never = cluster.detached("--num-cpus 1000 -- true");
  CHECK(cluster.job("status", never).output.find("no node has 1000 CPU at all") != std::string::npos);
  CHECK(cluster.job("wait", cluster.detached("-- true")).code == 0);  // it held up nobody
  cluster.job("stop", never);
}

}  // namespace jobs_test
