/// bench_all_reduce: all-reduce of f32 on one machine, ours against Gloo and OpenMPI, in one run.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bench/all_reduce/contenders.hpp"

using namespace bench;

namespace {

constexpr const char* kHelp =
    R"(bench_all_reduce: all-reduce of f32 on one machine, ours against Gloo and OpenMPI.

  --sizes LIST   buffer sizes, default 64KiB,1MiB,25MiB
  --ranks LIST   numbers of processes, default 2,4
  --rounds N     turns that each contender gets, default 9 (the first warms up and is not counted)
  --json FILE    also write one JSON object a line
  --help         this text

Ranks are bound to a core each where there are as many cores, as mpirun does it for its own.
Contenders take turns in one run (A B A B ...); a time is that of the slowest process of a call, and medians are
shown. Buffers are written anew before every call, which is not timed, and every result is checked.

  ours      all_reduce_tree on memory that the group allocated, as the reducer uses it
  private   all_reduce on each process's own buffer, copied through the shared region
  Gloo      TCP on the loopback, the best of chunked ring, halving-doubling and ring
  OpenMPI   MPI_Allreduce in place, shared memory
  memcpy    a copy of the buffer in every process at once, as a reference
)";

struct Options {
  std::vector<std::size_t> sizes{64 << 10, 1 << 20, 25 << 20};
  std::vector<int> ranks{2, 4};
  int rounds = 9;
  std::string json;
};

[[noreturn]] void usage_error(const std::string& what) {
  std::fprintf(stderr, "bench_all_reduce: %s (see --help)\n", what.c_str());
  std::exit(2);
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  while (true) {
    const auto comma = list.find(',');
    parts.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    list.remove_prefix(comma + 1);
  }
}

std::size_t parse_number(const std::string& text, const std::map<std::string, std::size_t>& units,
                         std::size_t most) {
  char* end = nullptr;
  const auto value = std::strtoull(text.c_str(), &end, 10);
  const auto unit = units.find(end);
  if (end == text.c_str() || unit == units.end() || value == 0 || value > most / unit->second) {
    usage_error("'" + text + "' is not a value for this flag");
  }
  return value * unit->second;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    if (flag != "--sizes" && flag != "--ranks" && flag != "--rounds" && flag != "--json") {
      usage_error("unknown flag '" + flag + "'");
    }
    if (i + 1 == argc) usage_error(flag + " needs a value");
    const std::string value = argv[++i];
    if (flag == "--sizes") {
      options.sizes.clear();
      for (const auto& part : split(value)) {
        options.sizes.push_back(parse_number(
            part, {{"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}, std::size_t{4} << 30));
      }
    } else if (flag == "--ranks") {
      options.ranks.clear();
      for (const auto& part : split(value)) {
        options.ranks.push_back(static_cast<int>(parse_number(part, {{"", 1}}, kMaxRanks)));
      }
    } else if (flag == "--rounds") {
      options.rounds = static_cast<int>(parse_number(value, {{"", 1}}, 40));
    } else {
      options.json = value;
    }
  }
  return options;
}

std::string size_name(std::size_t bytes) {
  if (bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes % 1024 == 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

/// A process that gets `signal` when this one dies.
template <class Body>
pid_t start(Body body, int signal = SIGKILL) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, signal);
  if (::getppid() != parent) ::_exit(1);
  int code = 0;
  try {
    body();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_all_reduce: %s\n", e.what());
    code = 1;
  }
  ::_exit(code);
}

#ifdef BENCH_MPIRUN
pid_t start_mpi(const std::string& stage_path, int ranks) {
  std::vector<std::string> args{
      BENCH_MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n",      std::to_string(ranks), "--mca",
      "btl",        "self,vader",          BENCH_MPI_PROGRAM, stage_path};
  std::vector<char*> pointers;
  pointers.reserve(args.size() + 1);
  for (auto& arg : args) pointers.push_back(arg.data());
  pointers.push_back(nullptr);
  // SIGTERM, so that mpirun ends its ranks.
  return start(
      [&] {
        ::execv(BENCH_MPIRUN, pointers.data());
        throw std::runtime_error("cannot start " BENCH_MPIRUN);
      },
      SIGTERM);
}
#endif

/// One size and one number of ranks: all contenders, started, conducted and ended.
class Measurement {
 public:
  Measurement(std::size_t bytes, int ranks)
      : memory_(troupe::SharedMemory::create("bench-stage", sizeof(Stage), false).value()),
        stage_(*new (memory_.data()) Stage) {
    stage_.bytes = bytes;
    stage_.ranks = ranks;
    // About a quarter of a second of Gloo a turn.
    stage_.samples_a_turn = static_cast<int>(std::clamp<std::size_t>((64 << 20) / bytes, 3, 100));
    std::string pattern = (std::filesystem::temp_directory_path() / "bench_all_reduce.XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    folder_ = pattern;
    start_all();
  }
  ~Measurement() {
    stage_.stop.store(1);
    give_turn(0);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  /// Conducts; false if a contender died or summed wrongly.
  bool run(int rounds) {
    if (!wait_for(stage_.ready, contenders_.size() * static_cast<std::size_t>(stage_.ranks))) return false;
    std::filesystem::remove_all(folder_);  // all have met; nothing is left if this run is killed
    for (int round = 0; round < rounds; ++round) {
      for (const Contender who : contenders_) {
        stage_.finished.store(0);
        give_turn(who + 1U);
        if (!wait_for(stage_.finished, static_cast<std::size_t>(stage_.ranks))) return false;
      }
    }
    if (stage_.wrong.load() != 0)
      std::fprintf(stderr, "bench_all_reduce: a contender computed a wrong sum\n");
    return stage_.wrong.load() == 0;
  }

  bool has(Contender who) const {
    return std::find(contenders_.begin(), contenders_.end(), who) != contenders_.end();
  }

  /// Median milliseconds of the best algorithm, without the first turn.
  double median_ms(Contender who) const {
    double best = std::numeric_limits<double>::infinity();
    for (int a = 0; a < (who == kGloo ? kAlgorithms : 1); ++a) {
      std::vector<double> slowest;
      const int samples = std::min<int>(kMaxSamples, static_cast<int>(stage_.taken[who][0].load()));
      for (int s = samples > stage_.samples_a_turn ? stage_.samples_a_turn : 0; s < samples; ++s) {
        double time = 0;
        for (int r = 0; r < stage_.ranks; ++r) time = std::max(time, stage_.times[who][a][r][s]);
        slowest.push_back(time);
      }
      std::nth_element(slowest.begin(), slowest.begin() + static_cast<long>(slowest.size() / 2),
                       slowest.end());
      best = std::min(best, slowest[slowest.size() / 2] / 1e6);
    }
    return best;
  }

 private:
  void start_all() {
    using troupe::SharedMemory;
    const std::size_t bytes = region_bytes(stage_.ranks, stage_.bytes);
    const auto tree = std::make_shared<SharedMemory>(SharedMemory::create("bench", bytes, false).value());
    const auto copied = std::make_shared<SharedMemory>(SharedMemory::create("bench", bytes, false).value());
    contenders_ = {kOurs, kOursPrivate, kCopy};
    for (int r = 0; r < stage_.ranks; ++r) {
      pids_.push_back(start([&] { perform_ours(stage_, r, true, tree); }));
      pids_.push_back(start([&] { perform_ours(stage_, r, false, copied); }));
      pids_.push_back(start([&] { perform_copy(stage_, r); }));
    }
#ifdef BENCH_HAS_GLOO
    contenders_.push_back(kGloo);
    for (int r = 0; r < stage_.ranks; ++r) {
      pids_.push_back(start([&] { perform_gloo(stage_, r, folder_); }));
    }
#endif
#ifdef BENCH_MPIRUN
    contenders_.push_back(kMpi);
    pids_.push_back(start_mpi("/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory_.fd()),
                              stage_.ranks));
#endif
  }

  void give_turn(std::uint32_t turn) {
    stage_.turn.store(turn);
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&stage_.turn), FUTEX_WAKE, 1 << 20, nullptr,
              nullptr, 0);
  }

  /// Waits for ranks; false when a process ended meanwhile.
  bool wait_for(const std::atomic<std::uint32_t>& count, std::size_t wanted) {
    while (count.load() < wanted) {
      for (pid_t& pid : pids_) {
        int status = 0;
        if (::waitpid(pid, &status, WNOHANG) == 0) continue;
        std::fprintf(stderr, "bench_all_reduce: a contender ended early\n");
        for (const pid_t other : pids_) {
          if (other != pid) ::kill(other, SIGTERM);
        }
        std::swap(pid, pids_.back());
        pids_.pop_back();
        return false;
      }
      const timespec slice{0, 2'000'000};
      ::nanosleep(&slice, nullptr);
    }
    return true;
  }

  troupe::SharedMemory memory_;
  Stage& stage_;
  std::string folder_;
  std::vector<Contender> contenders_;
  std::vector<pid_t> pids_;
};

void report(const Measurement& measured, const std::string& name, std::FILE* json) {
  struct Line {
    Contender ours;
    Contender peer;
    const char* peer_name;
  };
  const double ours = measured.median_ms(kOurs);
  std::printf("%-16s ours %9.4f ms\n", name.c_str(), ours);
  for (const Line& line :
       {Line{kOurs, kGloo, "Gloo"}, Line{kOurs, kMpi, "OpenMPI"}, Line{kOurs, kCopy, "memcpy"},
        Line{kOursPrivate, kGloo, "Gloo"}, Line{kOursPrivate, kMpi, "OpenMPI"}}) {
    if (!measured.has(line.peer)) continue;
    const double mine = measured.median_ms(line.ours), theirs = measured.median_ms(line.peer);
    const bool is_private = line.ours == kOursPrivate;
    std::printf("  %-8s %9.4f ms  %6.2fx%s\n", line.peer_name, theirs, theirs / mine,
                is_private ? (" of private buffers, ours " + std::to_string(mine) + " ms").c_str() : "");
    if (json == nullptr) continue;
    std::fprintf(
        json,
        "{\"bench\":\"all_reduce\",\"case\":\"%s%s\",\"ours\":%.6f,\"peer\":%.6f,\"peer_name\":\"%s\","
        "\"ratio\":%.3f,\"unit\":\"ms\"}\n",
        name.c_str(), is_private ? " private" : "", mine, theirs, line.peer_name, theirs / mine);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
#ifndef BENCH_HAS_GLOO
  std::printf("skipped Gloo: it was not there at build time (apt-get install libgloo-dev)\n");
#endif
#ifndef BENCH_MPIRUN
  std::printf(
      "skipped OpenMPI: it was not there at build time (apt-get install openmpi-bin libopenmpi-dev)\n");
#endif
  std::FILE* json = nullptr;
  if (!options.json.empty() && (json = std::fopen(options.json.c_str(), "w")) == nullptr) {
    std::perror(("bench_all_reduce: cannot write " + options.json).c_str());
    return 1;
  }
  bool good = true;
  try {
    for (const int ranks : options.ranks) {
      for (const std::size_t bytes : options.sizes) {
        Measurement measurement(bytes, ranks);
        if (measurement.run(options.rounds)) {
          report(measurement, size_name(bytes) + " n=" + std::to_string(ranks), json);
        } else {
          good = false;
        }
      }
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_all_reduce: %s\n", e.what());
    good = false;
  }
  if (json != nullptr && std::fclose(json) != 0) good = false;
  return good ? 0 : 1;
}
