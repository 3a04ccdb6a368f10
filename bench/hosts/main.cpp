/// bench_hosts: collectives between hosts. What the cost model is made of, what thousands of ranks would send
/// each other (production's plans, followed without sockets), and real processes in network namespaces, whose
/// links are read at the interface.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/collectives/machines.hpp"
#include "bench/hosts/constants.hpp"
#include "collectives/native/region.hpp"
#include "collectives/rendezvous/init.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/host_traffic.hpp"

using namespace troupe;
using namespace troupe::collectives;

namespace bench {
namespace {

constexpr const char* kHelp =
    R"(bench_hosts: collectives between hosts.

  --constants      measures what the cost model is made of, over the loopback interface
  --traffic        counts what 8 x 2, 64 x 8 and 512 x 8 ranks send each other, by production's plans
  --hosts N        with --ranks: real processes, each host a network namespace, joined by a switch; needs root
  --ranks K        of each host, default 2
  --rate RATE      what each link is slowed down to, as tc writes it ("1gbit"); default: not at all
  --encrypt        encrypt_data_plane
  --json FILE      also write one JSON object a line
  --help           this text

Exits with 1 if a sum has other bits than on one host, with 77 where there can be no namespaces.
)";

constexpr int kMaxHosts = 64;
constexpr int kRepeats = 20;
constexpr int kMaxMachines = kMaxHosts;
constexpr std::uint16_t kPort = 20300;

struct Case {
  OpKind kind;
  std::size_t bytes;  ///< of one rank's part
};

constexpr std::array kCases{Case{OpKind::kBarrier, 0},         Case{OpKind::kAllReduce, 8},
                            Case{OpKind::kAllReduce, 4 << 10}, Case{OpKind::kAllReduce, 64 << 10},
                            Case{OpKind::kAllReduce, 1 << 20}, Case{OpKind::kAllReduce, 16 << 20},
                            Case{OpKind::kBroadcast, 256},     Case{OpKind::kBroadcast, 16 << 20},
                            Case{OpKind::kAllGather, 4 << 10}, Case{OpKind::kReduceScatter, 256 << 10}};

Op op_of(const Case& c) {
  return {.kind = c.kind, .dtype = DType::kFloat32, .count = c.bytes / sizeof(float)};
}

std::string name_of(const Case& c) {
  if (c.kind == OpKind::kBarrier) return "barrier";
  const std::string size = c.bytes % (1 << 20) == 0 ? std::to_string(c.bytes >> 20) + " MiB"
                           : c.bytes % 1024 == 0    ? std::to_string(c.bytes >> 10) + " KiB"
                                                    : std::to_string(c.bytes) + " B";
  return std::string(collectives::name_of(c.kind)) + " " + size;
}

/// Bytes that a host with so many of `hosts` x `ranks` has to send, and to receive, whatever the algorithm,
/// in the exact order: it adds up what its ranks have, and what it gets it gets once.
double bound_of(const Case& c, int hosts, int ranks) {
  const auto bytes = static_cast<double>(c.bytes);
  const double others = hosts - 1;
  switch (c.kind) {
    case OpKind::kAllReduce:
      return 2 * bytes * others / hosts;
    case OpKind::kReduceScatter:
      return bytes * ranks * others;
    case OpKind::kAllGather:
      return bytes * ranks * others;
    default:
      return bytes;
  }
}

const char* text_of(Route route) {
  return route == Route::kDirect ? "direct" : route == Route::kChain ? "chain" : "passed on";
}

void print_constants() {
  const Constants c = measure_constants();
  std::printf("send %.2f us, receive %.2f us, empty poll %.2f us, hop %.2f us, 32 at once %.1f us\n", c.send,
              c.receive, c.poll, c.hop, c.incast);
}

void print_traffic() {
  using testing::HostTraffic;
  std::printf("%-10s %-22s %-10s %6s %6s %8s %8s %12s %12s %6s\n", "ranks", "operation", "route", "rounds",
              "steps", "frames", "a rank", "sent B", "bound B", "conn.");
  for (const auto& [hosts, ranks] : {std::pair(8, 2), std::pair(64, 8), std::pair(512, 8)}) {
    for (const Case& c : kCases) {
      const bool long_winded = c.bytes > (1 << 20) || c.kind == OpKind::kReduceScatter;
      if (hosts == 512 && long_winded) continue;  // minutes, and nothing new
      const HostTraffic found = testing::follow(testing::even_hosts(hosts, ranks), op_of(c));
      if (!found.broken.empty()) throw std::runtime_error(found.broken);
      std::printf("%-10s %-22s %-10s %6zu %6d %8zu %8zu %12zu %12.0f %6zu\n",
                  (std::to_string(hosts) + " x " + std::to_string(ranks)).c_str(), name_of(c).c_str(),
                  text_of(found.choice.route), found.rounds, found.steps, found.frames, found.rank_frames,
                  found.bytes, bound_of(c, hosts, ranks), found.connections);
    }
    const std::size_t landing = landing_bytes(hosts, static_cast<std::size_t>(ranks));
    std::printf("%d x %d: a host keeps at most %zu MiB for what comes from others\n", hosts, ranks,
                landing * static_cast<std::size_t>(hosts) * kLandings >> 20);
  }
}

/// What the processes tell the one that started them.
struct Report {
  std::array<std::array<std::atomic<std::uint64_t>, kMaxMachines>, kCases.size()>
      sent;  ///< bytes at the interface
  std::array<std::array<std::atomic<std::uint64_t>, kMaxMachines>, kCases.size()> packets;  ///< the same
  std::array<std::atomic<std::uint64_t>, kCases.size()> nanoseconds;  ///< median, of rank 0
  std::atomic<std::uint64_t> wrong;
};

struct Counters {
  std::uint64_t bytes = 0, packets = 0;
};

/// Sent by this thread's host so far.
Counters counters() {
  std::ifstream file("/proc/thread-self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find(std::string(kWireName) + ":");
    if (at == std::string::npos) continue;
    std::array<std::uint64_t, 10> values{};
    const char* text = line.c_str() + line.find(':') + 1;
    for (auto& value : values) {
      char* end = nullptr;
      value = std::strtoull(text, &end, 10);
      text = end;
    }
    return {values[8], values[9]};
  }
  throw std::runtime_error("no interface " + std::string(kWireName));
}

float value_of(int rank, std::size_t i) {
  return static_cast<float>(mix(static_cast<std::uint64_t>(rank) + 1, i) % 20001) / 10000.0F - 1.0F;
}

/// The sum of element i of ranks [begin, end) in the order of the tree.
float sum_of(int begin, int end, std::size_t i) {
  if (end - begin == 1) return value_of(begin, i);
  const int middle = begin + split_point(end - begin);
  return sum_of(begin, middle, i) + sum_of(middle, end, i);
}

std::shared_ptr<Work> call(ProcessGroup& group, const Case& c, std::vector<float>& in,
                           std::vector<float>& out) {
  switch (c.kind) {
    case OpKind::kAllReduce:
      return group.all_reduce(std::span(in));
    case OpKind::kBroadcast:
      return group.broadcast(std::span(in), 0);
    case OpKind::kAllGather:
      return group.all_gather(in, out);
    case OpKind::kReduceScatter:
      return group.reduce_scatter(in, out);
    default:
      return group.barrier();
  }
}

void rank_process(int rank, int hosts, int ranks, bool encrypt, Report& report) {
  const int size = hosts * ranks, host = rank / ranks;
  InitOptions options{.rank = rank, .size = size};
  options.key = std::string(64, '7');
  options.data_bytes = 1 << 20;
  options.encrypt_data_plane = encrypt;
  const auto group = init_process_group(
      "native", "tcp://" + Machines::address(0) + ":" + std::to_string(kPort), std::move(options));
  const MonotonicClock clock;
  for (std::size_t k = 0; k < kCases.size(); ++k) {
    const Case& c = kCases[k];
    const std::size_t part = c.bytes / sizeof(float), all = part * static_cast<std::size_t>(size);
    std::vector<float> in(c.kind == OpKind::kReduceScatter ? all : part);
    std::vector<float> out(c.kind == OpKind::kAllGather ? all : part);
    std::vector<std::int64_t> times;
    Counters before;
    for (int i = -2; i < kRepeats; ++i) {
      for (std::size_t e = 0; e < in.size(); ++e) in[e] = value_of(rank, e);
      group->barrier()->wait();
      if (i == 0) before = counters();
      const Instant begun = clock.now();
      call(*group, c, in, out)->wait();
      if (i >= 0) times.push_back((clock.now() - begun).count());
    }
    group->barrier()->wait();
    if (rank % ranks == 0) {
      const Counters now = counters();
      report.sent[k][static_cast<std::size_t>(host)] = (now.bytes - before.bytes) / kRepeats;
      report.packets[k][static_cast<std::size_t>(host)] = (now.packets - before.packets) / kRepeats;
    }
    std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
    if (rank == 0) report.nanoseconds[k] = static_cast<std::uint64_t>(times[kRepeats / 2]);
    for (std::size_t e = 0; e<part; e += part> 100'000 ? 97 : 1) {
      float wanted = 0, got = 0;
      if (c.kind == OpKind::kAllReduce) wanted = sum_of(0, size, e), got = in[e];
      if (c.kind == OpKind::kBroadcast) wanted = value_of(0, e), got = in[e];
      if (c.kind == OpKind::kReduceScatter) {
        wanted = sum_of(0, size, static_cast<std::size_t>(rank) * part + e), got = out[e];
      }
      if (c.kind == OpKind::kAllGather) wanted = value_of(size - 1, e), got = out[all - part + e];
      if (std::memcmp(&wanted, &got, sizeof wanted) != 0) report.wrong.fetch_add(1);
    }
  }
}

int run_processes(int hosts, int ranks, const std::string& rate, bool encrypt, std::FILE* json) {
  auto* report = static_cast<Report*>(
      ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (report == MAP_FAILED) throw std::runtime_error("cannot map memory");
  std::optional<Machines> machines;
  try {
    machines.emplace(rate, hosts);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_hosts: %s\n", e.what());
    return 77;
  }
  std::vector<pid_t> pids;
  for (int rank = 0; rank < hosts * ranks; ++rank) {
    pids.push_back(::fork());
    if (pids.back() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      machines->enter(rank / ranks);
      rank_process(rank, hosts, ranks, encrypt, *report);
      ::_exit(0);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "bench_hosts: rank %d: %s\n", rank, e.what());
      ::_exit(1);
    }
  }
  bool failed = false;
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    failed = failed || status != 0;
  }
  if (failed) return 1;
  std::printf("%-22s %12s %14s %14s %8s %10s\n", "operation", "median us", "link sent B", "bound B", "ratio",
              "packets");
  for (std::size_t k = 0; k < kCases.size(); ++k) {
    std::uint64_t most = 0, packets = 0;
    for (int h = 0; h < hosts; ++h) {
      most = std::max(most, report->sent[k][static_cast<std::size_t>(h)].load());
      packets = std::max(packets, report->packets[k][static_cast<std::size_t>(h)].load());
    }
    const double bound = bound_of(kCases[k], hosts, ranks);
    std::printf("%-22s %12.1f %14" PRIu64 " %14.0f %8.2f %10" PRIu64 "\n", name_of(kCases[k]).c_str(),
                static_cast<double>(report->nanoseconds[k]) / 1e3, most, bound,
                bound > 0 ? static_cast<double>(most) / bound : 0.0, packets);
    if (json != nullptr) {
      std::fprintf(json,
                   R"({"bench": "bench_hosts", "case": "%s, %d x %d", "ours": %.1f, "peer": %.1f, )"
                   R"("peer_name": "bytes that have to be sent", "ratio": %.3f, "unit": "B a link"})"
                   "\n",
                   name_of(kCases[k]).c_str(), hosts, ranks, static_cast<double>(most), bound,
                   bound / static_cast<double>(std::max<std::uint64_t>(1, most)));
    }
  }
  if (report->wrong != 0) {
    std::printf("%" PRIu64 " elements have other bits than the tree gives\n", report->wrong.load());
    return 1;
  }
  std::printf("all bits are those of the tree\n");
  return 0;
}

[[noreturn]] void usage_error(const std::string& what) {
  std::fprintf(stderr, "bench_hosts: %s (see --help)\n", what.c_str());
  std::exit(2);
}

int number(const std::string& flag, const std::string& text, int least, int most) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > most) {
    usage_error("'" + text + "' is not a value for " + flag);
  }
  return static_cast<int>(value);
}

int run(int argc, char** argv) {
  bool constants = false, traffic = false, encrypt = false;
  int hosts = 0, ranks = 2;
  std::string rate;
  std::FILE* json = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help") {
      std::printf("%s", kHelp);
      return 0;
    }
    if (flag == "--constants") {
      constants = true;
      continue;
    }
    if (flag == "--traffic") {
      traffic = true;
      continue;
    }
    if (flag == "--encrypt") {
      encrypt = true;
      continue;
    }
    if (i + 1 == argc) usage_error("'" + flag + "' is no flag, or wants a value");
    const std::string value = argv[++i];
    if (flag == "--hosts") {
      hosts = number(flag, value, 2, kMaxHosts);
    } else if (flag == "--ranks") {
      ranks = number(flag, value, 1, 16);
    } else if (flag == "--rate") {
      rate = value;
    } else if (flag == "--json") {
      json = std::fopen(value.c_str(), "w");
      if (json == nullptr) usage_error("cannot write " + value);
    } else {
      usage_error("'" + flag + "' is no flag");
    }
  }
  if (!constants && !traffic && hosts == 0) usage_error("say what to do");
  if (constants) print_constants();
  if (traffic) print_traffic();
  const int result = hosts == 0 ? 0 : run_processes(hosts, ranks, rate, encrypt, json);
  if (json != nullptr) std::fclose(json);
  return result;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  try {
    return bench::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_hosts: %s\n", e.what());
    return 1;
  }
}
