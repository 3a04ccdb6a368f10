// A cluster started by hand with the command line, and programs that join it: real processes, keys and
// sockets.
#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "scheduler/init/cluster_folder.hpp"
#include "runtime/node/package.hpp"
#include "runtime/link/zmq/zmq_transport.hpp"
#include "scheduler/init/init.hpp"

using namespace troupe;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

struct Ran {
  int code = -1;
  std::string output;  ///< both streams
};

Ran shell(const std::string& command) {
  Ran ran;
  FILE* pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (std::size_t got = 0; (got = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    ran.output.append(buffer, got);
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

std::string slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool eventually(const std::function<bool()>& condition, Duration timeout = 15s) {
  const MonotonicClock clock;
  for (const Instant end = clock.now() + timeout; clock.now() < end; std::this_thread::sleep_for(5ms)) {
    if (condition()) return true;
  }
  return condition();
}

/// Children of `parent` with that name.
std::vector<pid_t> children(pid_t parent, const std::string& name) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    const std::string stat = slurp(entry.path() / "stat");
    const auto open = stat.find('('), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos) continue;
    char state = 0;
    int ppid = 0;
    std::istringstream(stat.substr(close + 1)) >> state >> ppid;
    if (ppid == parent && state != 'Z' && stat.substr(open + 1, close - open - 1) == name)
      found.push_back(pid);
  }
  return found;
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

/// A head with a node ("one") and a second node ("two") of a folder of its own, which came in with a token.
struct Cluster {
  Cluster() {
    std::string path = (fs::temp_directory_path() / "troupe-cluster-XXXXXX").string();
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    root = path;
    const auto head = troupe("start --head --port 0 --cpus 4 --name one --detach --folder " + root + "/a");
    INFO(head.output);
    REQUIRE(head.code == 0);
    address = slurp(root + "/a/address");
    address.pop_back();
    REQUIRE(shell("umask 077; " TROUPE_CLI " token --folder " + root + "/a > " + root + "/token").code == 0);
    const auto node = troupe("start --address " + address + " --cpus 4 --name two --detach --token-file " +
                             root + "/token --folder " + root + "/b");
    INFO(node.output);
    REQUIRE(node.code == 0);
  }
  ~Cluster() {
    troupe("stop --folder " + root + "/b");
    troupe("stop --folder " + root + "/a");
    fs::remove_all(root);
  }
  Ran troupe(const std::string& words) const { return shell(TROUPE_CLI " " + words); }
  pid_t supervisor(const std::string& folder) const {
    return ClusterFolder::open(root + "/" + folder).value().running().at(0).pid;
  }
  DriverSession join(const std::string& job) const {
    return init(0, nullptr, {.address = address, .folder = root + "/a", .job = job});
  }
  std::string log() const { return slurp(root + "/a/head.log"); }
  std::uint16_t port() const { return parse_endpoint(address).value().port; }

  std::string root;
  std::string address;
};

NodeId node_named(const Session& session, const std::string& name) {
  NodeId id;
  REQUIRE(eventually([&] {
    for (const auto& node : session.nodes()) {
      if (node.name == name) id = node.id;
    }
    return static_cast<bool>(id);
  }));
  return id;
}

struct Guest {
  int pid() { return ::getpid(); }
  int parent() { return ::getppid(); }
  std::string program() { return fs::read_symlink("/proc/self/exe").string(); }
  std::string hash() { return hash_own_executable().value(); }
  int child_pid(NodeId node) {
    child = this_actor().session().spawn<Guest>({.isolated = true, .node = node});
    return child.call<&Guest::pid>().get(20s);
  }
  ActorHandle<Guest> child;
};

/// Opens a connection to the head, sends `bytes` and waits for the end of what comes back.
std::string knock(std::uint16_t port, const std::string& bytes) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  timeval patience{10, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::string answer;
  char buffer[512];
  for (ssize_t got = 0; (got = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;)
    answer.append(buffer, static_cast<std::size_t>(got));
  return answer;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("a program joins, its executable travels, and all of it goes with the program", "[cluster]") {
  const auto shm = names_in("/dev/shm");
  const Cluster cluster;
  std::vector<pid_t> workers;
  {
    auto session = cluster.join("guests");
    const NodeId one = node_named(session, "one"), two = node_named(session, "two");
    auto here = session.spawn<Guest>({.isolated = true, .node = one});
    auto there = session.spawn<Guest>({.isolated = true, .node = two});
    auto anywhere =
        session.spawn<Guest>({.num_cpus = 1, .isolated = true});  // and never on the driver's own node
    CHECK((anywhere.address().node == one || anywhere.address().node == two));
    for (auto* guest : {&here, &there}) {
      CHECK(guest->call<&Guest::program>().get(20s).find("memfd:troupe-package") != std::string::npos);
      CHECK(guest->call<&Guest::hash>().get(20s) == hash_own_executable().value());
      workers.push_back(guest->call<&Guest::pid>().get(20s));
    }
    CHECK(here.call<&Guest::parent>().get(20s) != there.call<&Guest::parent>().get(20s));
    workers.push_back(
        here.call<&Guest::child_pid>(two).get(30s));  // an actor's actor runs the same executable
    const auto status = cluster.troupe("status --folder " + cluster.root + "/b");
    INFO(status.output);
    CHECK(status.code == 0);
    CHECK(count(status.output, "alive") == 3 + 4);
    CHECK(count(status.output, "guests") >= 2);
  }
  CHECK(eventually([&] {
    return std::all_of(workers.begin(), workers.end(), [](pid_t pid) { return ::kill(pid, 0) != 0; });
  }));
  CHECK(eventually(
      [&] { return count(cluster.troupe("status --folder " + cluster.root + "/a").output, "alive") == 2; }));
  const auto stopped = cluster.troupe("stop --folder " + cluster.root + "/a");
  CHECK(stopped.output.find("ended head") != std::string::npos);
  CHECK(cluster.troupe("status --folder " + cluster.root + "/a").code == 1);
  CHECK(names_in("/dev/shm") == shm);
}

TEST_CASE("a driver that is killed leaves no worker behind, and the cluster stays", "[cluster]") {
  const Cluster cluster;
  ::setenv("TROUPE_TEST_ROOT", cluster.root.c_str(), 1);
  const pid_t driver = ::fork();
  if (driver == 0) {
    ::execl("/proc/self/exe", "test_cluster", "a driver for the test above", nullptr);
    ::_exit(127);
  }
  ::unsetenv("TROUPE_TEST_ROOT");
  const std::string said = cluster.root + "/worker";
  REQUIRE(eventually([&] { return fs::exists(said); }, 60s));
  const pid_t worker = std::stoi(slurp(said));
  CHECK(::kill(worker, 0) == 0);
  ::kill(driver, SIGKILL);
  ::waitpid(driver, nullptr, 0);
  CHECK(eventually([&] { return ::kill(worker, 0) != 0; }));
  CHECK(eventually([&] {
    const auto status = cluster.troupe("status --folder " + cluster.root + "/a").output;
    return count(status, "alive") == 2 && status.find("ended") != std::string::npos;
  }));
}

TEST_CASE("a driver for the test above", "[.driver]") {
  const std::string root = std::getenv("TROUPE_TEST_ROOT");
  const std::string address = slurp(root + "/a/address");
  const std::string flag = "--address=" + address.substr(0, address.size() - 1);
  const std::string name = "driver";
  ::setenv("XDG_STATE_HOME", (root + "/none").c_str(), 1);
  char* argv[] = {const_cast<char*>(name.c_str()), const_cast<char*>(flag.c_str())};
  auto session = init(2, argv, {.folder = root + "/a"});
  auto guest = session.spawn<Guest>({.isolated = true});
  std::ofstream(root + "/worker.new") << guest.call<&Guest::pid>().get(20s) << std::flush;
  fs::rename(root + "/worker.new", root + "/worker");
  ::sleep(60);
}

TEST_CASE("a node dies, the head dies: the rest goes on", "[cluster]") {
  const Cluster cluster;
  auto session = cluster.join("survivor");
  const NodeId one = node_named(session, "one"), two = node_named(session, "two");
  auto here = session.spawn<Guest>({.isolated = true, .node = one});
  auto there = session.spawn<Guest>({.isolated = true, .node = two});
  const pid_t start = cluster.supervisor("a");
  const pid_t head = children(start, "troupe-head").at(0);
  ::kill(head, SIGKILL);
  CHECK(here.call<&Guest::pid>().get(20s) > 0);  // nobody needs the head to talk
  auto late = session.spawn<Guest>({.isolated = true, .node = two});
  CHECK(late.call<&Guest::pid>().get(20s) > 0);
  CHECK(children(start, "troupe-head").at(0) != head);

  ::kill(children(cluster.supervisor("b"), "troupe-node").at(0), SIGKILL);
  CHECK_THROWS_AS(
      [&] {
        for (int i = 0; i < 1000; ++i) there.call<&Guest::pid>().get(20s);
      }(),
      ActorDied);
  CHECK(here.call<&Guest::pid>().get(20s) > 0);
  // Its supervisor brings a new one, with another id.
  CHECK(eventually([&] {
    const auto nodes = session.nodes();
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](const auto& node) { return node.name == "two" && node.id != two; });
  }));
}

TEST_CASE("who has no key, another version or no manners stays out, with a line in the log", "[cluster]") {
  const Cluster cluster;
  const auto folder = ClusterFolder::open(cluster.root + "/a").value();
  auto contact = folder.contact().value();

  SECTION("a key that nobody knows, and a token that was used") {
    contact.keys = CurveKeyPair::generate();
    const auto asked = ask_head(contact, wire::StatusAsk{1}, 5s);
    REQUIRE_FALSE(asked);
    CHECK(asked.error().code == ErrorCode::kRefused);
    CHECK(eventually([&] {
      return cluster.log().find("unknown key " + to_string(contact.keys.public_key())) != std::string::npos;
    }));
    const auto again = cluster.troupe("start --address " + cluster.address + " --token-file " + cluster.root +
                                      "/token --folder " + cluster.root + "/c");
    CHECK(again.code == 1);
    CHECK(again.output.find("token used or run out") != std::string::npos);
    CHECK(count(again.output, "\n") == 1);
    CHECK_THROWS_AS(init(0, nullptr, {.address = cluster.address, .folder = cluster.root + "/d"}), Refused);
  }
  SECTION("HTTP and noise") {
    CHECK(knock(cluster.port(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n").find("HTTP") == std::string::npos);
    knock(cluster.port(), std::string(4096, '\x5a'));
    CHECK(eventually([&] { return count(cluster.log(), "no handshake") >= 2; }));
  }
  SECTION("another protocol version") {
    const MonotonicClock clock;
    const auto transport = make_zmq_transport(clock);
    auto client = transport
                      ->connect({contact.address, contact.head_key, contact.keys},
                                {[](auto) {}, [](auto, const auto&) {}})
                      .value();
    auto frame = wire::control_frame(wire::StatusAsk{1});
    const auto version = std::find(frame.begin(), frame.end(), std::byte{wire::kProtocolVersion});
    *version = std::byte{wire::kProtocolVersion + 1};
    CHECK(client->send(frame));
    CHECK(eventually([&] { return cluster.log().find("version") != std::string::npos; }));
    CHECK(count(cluster.log(), "refused a frame of owner") == 1);
  }
  CHECK(cluster.troupe("status --folder " + cluster.root + "/a").code == 0);
}

TEST_CASE("bad words on the command line: one error, no process", "[cluster]") {
  std::string root = (fs::temp_directory_path() / "troupe-cli-XXXXXX").string();
  REQUIRE(::mkdtemp(root.data()) != nullptr);
  const auto fails = [&](const std::string& words, int code, const std::string& says) {
    const auto ran = shell(TROUPE_CLI " " + words);
    INFO(words << ": " << ran.output);
    CHECK(ran.code == code);
    CHECK(ran.output.find(says) != std::string::npos);
  };
  fails("", 2, "subcommand");
  fails("start", 2, "--head");
  fails("start --head --address 127.0.0.1:1", 2, "give one of them");
  fails("start --head --port 70000", 2, "port");
  fails("start --head --folder " + root + "/a --bind nowhere", 1, "nowhere");
  fails("start --head --folder /proc/none/a", 1, "cannot create");
  fails("start --address 127.0.0.1:9 --folder " + root + "/b", 1, "troupe token");
  fails("start --address nonsense --folder " + root + "/b", 1, "HOST:PORT");
  fails("status --folder " + root + "/b", 1, "troupe start --head");
  fails("stop --folder " + root + "/b", 0, "nothing runs");
  std::ofstream(root + "/open") << "troupe-join-v1.x\n";
  ::chmod((root + "/open").c_str(), 0644);
  fails("start --address 127.0.0.1:9 --token-file " + root + "/open --folder " + root + "/b", 1,
        "others may read");
  fails("start --address 127.0.0.1:9 --token-file - --folder " + root + "/b < " + root + "/open", 1,
        "join token");
  ::chmod((root + "/b/machine.key").c_str(), 0644);
  fails("start --head --folder " + root + "/b --port 0", 1, "no longer secret");
  CHECK(names_in(root) == std::set<std::string>{"a", "b", "open"});
  for (const char* folder : {"/a", "/b"}) CHECK(ClusterFolder::open(root + folder).value().running().empty());
  fs::remove_all(root);
}
