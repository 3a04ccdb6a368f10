// soak_serving: requests over HTTP, at every proxy of two nodes, while a replica is killed every 5 s, weights
// change 10 times and the head is killed twice. At the end every request was answered, once, and by one
// version of the weights alone: each version's answers are exact, and no other's.
//
//   soak_serving [--seconds N] [--connections N] [--seed N]
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "actors/serve/serve.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/random.hpp"
#include "scheduler/init/process_roles.hpp"
#include "tests/e2e/support.hpp"
#include "tests/e2e/weights.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

constexpr int kUpdates = 10, kHeadDeaths = 2;
constexpr Duration kKillEvery = 5s, kLastAnswer = 60s;

struct NetImpl : torch::nn::Module {
  NetImpl() { register_module("linear", linear); }
  torch::Tensor forward(const torch::Tensor& x) { return linear(x); }
  torch::nn::Linear linear{4, 3};
};
TORCH_MODULE(Net);
struct Sum {
  Net model() const { return Net(); }
  data::FieldSpec input() const { return {.shape = {4}}; }
};

/// Those that answer version * sum + 100 * version, three times.
wire::Bytes weights_of(int version) {
  const torch::NoGradGuard no_grad;
  Net net;
  net->linear->weight.fill_(version);
  net->linear->bias.fill_(100 * version);
  return e2e::weights_of(net);
}

struct Tally {
  std::uint64_t asked = 0, answered = 0, lost = 0, twice = 0, mixed = 0;
  std::map<int, std::uint64_t> by_version;
  std::map<int, std::uint64_t> by_port;
};

/// Many connections, each asking again when it is answered, in one thread.
class Client {
 public:
  Client(std::vector<int> ports, int connections, std::uint64_t seed) : random_(seed) {
    poll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    all_.resize(static_cast<std::size_t>(connections));
    for (std::size_t i = 0; i < all_.size(); ++i) {
      all_[i].port = ports[i % ports.size()];
      connect(i);
    }
  }

  /// Until `stop`; then until the last is answered.
  Tally ask(const std::atomic<bool>& stop) {
    for (std::size_t i = 0; i < all_.size(); ++i) send(i);
    Instant latest = Instant::max();
    std::vector<epoll_event> events(all_.size());
    while (under_way_ > 0 && clock_.now() < latest) {
      if (stop && latest == Instant::max()) latest = clock_.now() + kLastAnswer;
      const int ready = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 100);
      for (int n = 0; n < ready; ++n) {
        const auto i = static_cast<std::size_t>(events[static_cast<std::size_t>(n)].data.u64);
        if (take(i) && !stop) send(i);
      }
    }
    tally_.lost += under_way_;
    return tally_;
  }

 private:
  struct Connection {
    UniqueFd fd;
    int port = 0;
    std::string in, id;
    std::vector<int> sums;  ///< of the rows asked for
    bool waits = false;
  };

  void connect(std::size_t i) {
    Connection& one = all_[i];
    one.in.clear();
    one.fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(one.port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(one.fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) std::perror("connect");
    const int on = 1;
    ::setsockopt(one.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, one.fd.get(), &event);
  }

  void send(std::size_t i) {
    Connection& one = all_[i];
    one.sums.clear();
    one.id = "soak-" + std::to_string(++tally_.asked);
    std::string body = "{\"inputs\": [";
    for (std::uint64_t row = 0, rows = 1 + random_.below(3); row < rows; ++row) {
      int sum = 0;
      body += row == 0 ? "[" : ", [";
      for (int k = 0; k < 4; ++k) {
        const int value = static_cast<int>(random_.below(50));
        sum += value;
        body += (k == 0 ? "" : ", ") + std::to_string(value);
      }
      body += "]";
      one.sums.push_back(sum);
    }
    body += "]}";
    const std::string request = "POST /v1/sum HTTP/1.1\r\nHost: here\r\nX-Request-Id: " + one.id +
                                "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    one.waits = true;
    ++under_way_;
    if (::send(one.fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request.size()))
      lose(i, "it could not be sent");
  }

  void lose(std::size_t i, const std::string& why) {
    Connection& one = all_[i];
    if (one.waits) {
      one.waits = false;
      --under_way_;
      if (++tally_.lost <= 5)
        std::printf("%s to port %d was lost: %s\n", one.id.c_str(), one.port, why.c_str());
    }
    connect(i);
  }

  /// Reads what came. True: the connection may ask again.
  bool take(std::size_t i) {
    Connection& one = all_[i];
    char bytes[16384];
    const auto got = ::recv(one.fd.get(), bytes, sizeof bytes, 0);
    if (got <= 0) {
      lose(i, "the connection was closed");
      return true;
    }
    one.in.append(bytes, static_cast<std::size_t>(got));
    const auto head = one.in.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    const std::size_t size = head + 4 + std::strtoul(field(one.in, "Content-Length").c_str(), nullptr, 10);
    if (one.in.size() < size) return false;
    if (!one.waits) {
      ++tally_.twice;
      one.in.clear();
      return false;
    }
    judge(one, one.in.substr(0, size));
    one.in.erase(0, size);
    tally_.twice += !one.in.empty();
    one.waits = false;
    --under_way_;
    return true;
  }

  static std::string field(const std::string& response, const std::string& name) {
    const auto at = response.find(name + ": ");
    if (at == std::string::npos) return "";
    const auto begin = at + name.size() + 2;
    return response.substr(begin, response.find("\r\n", begin) - begin);
  }

  void judge(const Connection& one, const std::string& response) {
    if (response.compare(9, 3, "200") != 0) {
      if (++tally_.lost <= 5) std::printf("%s to port %d: %s\n", one.id.c_str(), one.port, response.c_str());
      return;
    }
    if (field(response, "X-Request-Id") != one.id) {
      ++tally_.twice;  // it is another one's
      return;
    }
    ++tally_.answered;
    ++tally_.by_port[one.port];
    const int version = std::atoi(field(response, "Weights-Version").c_str());
    ++tally_.by_version[version];
    std::string expected;
    for (const int sum : one.sums) {
      const std::string value = std::to_string(version * sum + 100 * version);
      expected += (expected.empty() ? "[" : ",[") + value + "," + value + "," + value + "]";
    }
    expected = "{\"outputs\": [" + expected + "]}\n";
    const std::string body = response.substr(response.find("\r\n\r\n") + 4);
    if (body == expected) return;
    if (++tally_.mixed <= 5)
      std::printf("version %d: %s instead of %s\n", version, body.c_str(), expected.c_str());
  }

  SeededRandom random_;
  const MonotonicClock clock_;
  UniqueFd poll_;
  std::vector<Connection> all_;
  std::uint64_t under_way_ = 0;
  Tally tally_;
};

int port_of(const std::string& url) {
  return std::atoi(url.c_str() + url.find(':', 6) + 1);
}

int run(int seconds, int connections, std::uint64_t seed) {
  auto session = init(0, nullptr, {.nodes = 2});
  auto served = serve::run(session, "sum", Sum{}, weights_of(1),
                           {.replicas = 2, .port = 0, .on_every_node = true, .max_queue = 100'000});
  if (!e2e::eventually([&] { return served.urls().size() == 2; })) {
    std::printf("no proxy came up on the second node\n");
    return 1;
  }
  std::vector<int> ports;
  for (const auto& url : served.urls()) ports.push_back(port_of(url));
  // A proxy answers when it has heard of the deployment.
  e2e::eventually([&] {
    return e2e::shell("curl -sf http://127.0.0.1:" + std::to_string(ports[1]) + "/healthz").code == 0;
  });
  std::atomic<bool> stop = false;
  Tally tally;
  std::thread asks([&] { tally = Client(ports, connections, seed).ask(stop); });

  const MonotonicClock clock;
  const Instant begin = clock.now();
  const auto elapsed = [&] { return clock.now() - begin; };
  int updates = 0, kills = 0, heads = 0;
  std::string trouble;
  std::atomic<bool> done = false;
  std::thread updater([&] {
    while (!done && updates < kUpdates) {
      if (elapsed() < (updates + 1) * Duration(std::chrono::seconds(seconds)) / (kUpdates + 1)) {
        std::this_thread::sleep_for(20ms);
        continue;
      }
      try {
        served.update(weights_of(updates + 2));
        ++updates;
      } catch (const std::exception& error) {
        trouble = error.what();
        return;
      }
    }
  });
  SeededRandom random(seed + 1);
  while (elapsed() < std::chrono::seconds(seconds) ||
         (updates < kUpdates && trouble.empty() && elapsed() < std::chrono::seconds(seconds) + 60s)) {
    std::this_thread::sleep_for(20ms);
    if (elapsed() >= (kills + 1) * std::min<Duration>(kKillEvery, std::chrono::seconds(seconds) / 3)) {
      const auto pids = served.pids();
      if (!pids.empty()) ::kill(pids[random.below(pids.size())], SIGKILL);
      kills += !pids.empty();
    }
    if (heads < kHeadDeaths && elapsed() >= (heads + 1) * Duration(std::chrono::seconds(seconds)) / 3) {
      ::kill(session.embedded()->head_pid(), SIGKILL);
      ++heads;
    }
  }
  done = true;
  updater.join();
  stop = true;
  asks.join();
  std::printf(
      "soak_serving: %llu requests in %d s at %zu proxies: %llu answered, %llu lost, %llu answered twice, "
      "%llu by "
      "mixed weights; %d replicas and %d heads killed, weights changed %d times\n",
      static_cast<unsigned long long>(tally.asked), seconds, ports.size(),
      static_cast<unsigned long long>(tally.answered), static_cast<unsigned long long>(tally.lost),
      static_cast<unsigned long long>(tally.twice), static_cast<unsigned long long>(tally.mixed), kills,
      heads, updates);
  for (const auto& [version, count] : tally.by_version)
    std::printf("  weights %d: %llu\n", version, static_cast<unsigned long long>(count));
  for (const auto& [port, count] : tally.by_port)
    std::printf("  port %d: %llu\n", port, static_cast<unsigned long long>(count));
  if (!trouble.empty()) std::printf("an update failed: %s\n", trouble.c_str());
  const bool good = tally.asked == tally.answered && tally.lost + tally.twice + tally.mixed == 0 &&
                    updates == kUpdates && heads == kHeadDeaths && kills > 0 && tally.by_port.size() == 2 &&
                    tally.by_version.size() >= 2;
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  become_role_if_asked();
  int seconds = 180, connections = 32;
  std::uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--connections") == 0) connections = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--seed") == 0) seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  if (seconds < 1 || connections < 2) {
    std::fprintf(stderr, "usage: soak_serving [--seconds N] [--connections N] [--seed N]\n");
    return 2;
  }
  return run(seconds, connections, seed);
} catch (const std::exception& error) {
  std::fprintf(stderr, "soak_serving: %s\n", error.what());
  return 1;
}
