// Objects of one machine, and restarts: a view of another process's object on the same node, a large object
// to another node beside the bare wire, the same to several readers of one node (each node gets it once), and
// the time from a crash of an actor to the next life's first answer.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/runtime/timing.hpp"
#include "scheduler/init/init.hpp"
#include "scheduler/init/process_roles.hpp"

namespace {

using namespace troupe;
using bench::median;
using bench::seconds_of;
using namespace std::chrono_literals;

double ends(const View<float>& numbers) {
  return double(numbers[0]) + double(numbers[numbers.size() - 1]);
}

struct Mortal {
  int pid() { return ::getpid(); }
};

struct Holder {
  ObjectRef<std::vector<float>> put(std::size_t bytes) {
    return this_actor().session().put(std::vector<float>(bytes / sizeof(float), 1.0F));
  }
};

/// Seconds that one TCP connection over the loopback takes for these bytes, into memory that is there:
/// nothing is checked, encrypted or found.
class Wire {
 public:
  explicit Wire(std::size_t bytes) : in_(bytes, 1) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* at = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener, at, sizeof address) != 0 || ::listen(listener, 1) != 0 ||
        ::getsockname(listener, at, &length) != 0)
      throw IoError(io_error("cannot listen on the loopback", errno, "let the program open ports"));
    child_ = ::fork();
    if (child_ == 0) send_when_asked(at, length, bytes);
    fd_ = ::accept(listener, nullptr, nullptr);
    ::close(listener);
  }
  ~Wire() {
    ::close(fd_);
    ::waitpid(child_, nullptr, 0);
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  double seconds() {
    return seconds_of([&] {
      if (::send(fd_, "x", 1, 0) != 1) throw IoError(io_error("the wire broke", errno, "try again"));
      for (std::size_t got = 0; got < in_.size();) {
        const ssize_t n = ::recv(fd_, in_.data() + got, in_.size() - got, 0);
        if (n <= 0) throw IoError(io_error("the wire broke", errno, "try again"));
        got += static_cast<std::size_t>(n);
      }
    });
  }

 private:
  [[noreturn]] static void send_when_asked(const sockaddr* at, socklen_t length, std::size_t bytes) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, at, length) != 0) ::_exit(1);
    const std::vector<char> out(bytes, 2);
    for (char asked = 0; ::recv(fd, &asked, 1, 0) == 1;) {
      for (std::size_t sent = 0; sent < bytes;) {
        const ssize_t n = ::send(fd, out.data() + sent, bytes - sent, MSG_NOSIGNAL);
        if (n <= 0) ::_exit(1);
        sent += static_cast<std::size_t>(n);
      }
    }
    ::_exit(0);
  }

  std::vector<char> in_;
  pid_t child_ = -1;
  int fd_ = -1;
};

/// Seconds until `readers` tasks of the node have read a new object of so many bytes that was put here.
double to_node(const Session& session, NodeId node, std::size_t bytes, int readers) {
  const auto object = session.put(std::vector<float>(bytes / sizeof(float), 1.0F));
  return seconds_of([&] {
    std::vector<Future<double>> answers;
    answers.reserve(std::size_t(readers));
    for (int i = 0; i < readers; ++i) answers.push_back(session.with({.node = node}).submit<&ends>(object));
    for (const auto& answer : answers) answer.get(120s);
  });
}

/// Seconds of the first view here of a new object of `holder`, which is on this node, and of a later one.
struct Views {
  double first = 0;
  double later = 0;
};
Views view_near(const ActorHandle<Holder>& holder, std::size_t bytes) {
  constexpr int kTimes = 1000;
  const auto object = holder.call<&Holder::put>(bytes).get(120s);
  double sum = 0;
  Views took;
  took.first = seconds_of([&] { sum += ends(object.view()); });
  took.later = seconds_of([&] {
                 for (int i = 0; i < kTimes; ++i) sum += ends(object.view());
               }) /
               kTimes;
  if (sum != 2.0 * (kTimes + 1)) throw std::runtime_error("a view has other numbers than were put");
  return took;
}

/// Seconds from the kill of a new actor's process to the next life's answer: later restarts wait ever longer.
double restart(const Session& session) {
  const auto actor = session.spawn<Mortal>({.isolated = true, .max_restarts = -1, .max_task_retries = -1});
  const int pid = actor.call<&Mortal::pid>().get(60s);
  const double took = seconds_of([&] {
    ::kill(pid, SIGKILL);
    while (actor.call<&Mortal::pid>().get(60s) == pid) {
    }
  });
  session.kill(actor);
  return took;
}

}  // namespace

int main(int argc, char** argv) try {
  int rounds = 7;
  std::size_t mebibytes = 1024;
  std::string json;
  CLI::App app("Measures objects on this machine, in a node and between two, and an actor's restart.");
  app.add_option("--rounds", rounds, "Rounds; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--size", mebibytes, "MiB of the large object")
      ->capture_default_str()
      ->check(CLI::Range(1, 65'536));
  app.add_option("--json", json, "Write the results to this file, an object a line");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const std::size_t bytes = mebibytes << 20;
  become_role_if_asked();  // of processes of the cluster none has the wire's memory
  Wire wire(bytes);        // forks: before there are threads
  auto session = init(0, nullptr, {.nodes = 2, .cpus_per_node = 16});
  NodeId far{};
  for (const auto& node : session.nodes()) {
    if (node.id != session.node()) far = node.id;
  }
  const auto holder = session.spawn<Holder>({.isolated = true, .node = session.node()});
  const std::vector<std::size_t> near_sizes = {std::size_t{1} << 20, bytes};
  std::vector<std::vector<double>> first(near_sizes.size()), later(near_sizes.size());
  std::vector<double> bare, one, eight, again;
  to_node(session, far, bytes, 8);  // starts the workers, and makes the memory there
  wire.seconds();
  for (int i = 0; i < rounds; ++i) {
    bare.push_back(wire.seconds());
    one.push_back(to_node(session, far, bytes, 1));
    eight.push_back(to_node(session, far, bytes, 8));
    again.push_back(restart(session));
    for (std::size_t k = 0; k < near_sizes.size(); ++k) {
      const Views took = view_near(holder, near_sizes[k]);
      first[k].push_back(took.first);
      later[k].push_back(took.later);
    }
  }
  std::ofstream out;
  if (!json.empty()) out.open(json);
  if (!json.empty() && !out)
    throw IoError(io_error("cannot write " + json, errno, "name a file in a folder that is there"));
  const std::string size = std::to_string(mebibytes) + " MiB";
  const auto row = [&](const std::string& name, double ours, double peer, const char* of,
                       const char* unit = "s") {
    std::printf("%-48s %9.4f %s", name.c_str(), ours, unit);
    nlohmann::json line{{"bench", "objects"}, {"case", name}, {"ours", ours}, {"unit", unit}};
    if (peer > 0) {
      std::printf("   %s %.4f %s  %.2fx", of, peer, unit, peer / ours);
      line.update({{"peer", peer}, {"peer_name", of}, {"ratio", peer / ours}});
    }
    std::printf("\n");
    out << line.dump() << "\n";
  };
  row(size + " to another node", median(one), median(bare), "bare wire");
  row("the same, 8 readers there", median(eight), median(one), "one reader");
  for (std::size_t k = 0; k < near_sizes.size(); ++k) {
    const std::string object = std::to_string(near_sizes[k] >> 20) + " MiB of another process here";
    row("view of " + object, median(later[k]) * 1e6, 0, "", "us");
    row("first view of " + object, median(first[k]) * 1e6, 0, "", "us");
  }
  row("crash of an actor to its next answer", median(again), 0, "");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_objects: %s\n", error.what());
  return 1;
}
