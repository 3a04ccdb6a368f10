#include "bench/collectives/measurement.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <new>
#include <stdexcept>

#include "bench/collectives/contenders.hpp"

namespace bench {
namespace {

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
    std::fprintf(stderr, "bench: %s\n", e.what());
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

}  // namespace

Measurement::Measurement(Op op, std::size_t bytes, int ranks, const std::vector<std::size_t>& offsets,
                         const Machines* machines)
    : memory_(troupe::SharedMemory::create("bench-stage", sizeof(Stage), false).value()),
      stage_(*new (memory_.data()) Stage) {
  const std::size_t part = sizeof(float) * static_cast<std::size_t>(ranks);
  stage_.op = op;
  stage_.bytes = std::max(part, bytes / part * part);
  stage_.ranks = ranks;
  // About a quarter of a second of Gloo a turn.
  stage_.samples_a_turn = static_cast<int>(std::clamp<std::size_t>((64 << 20) / bytes, 3, 100));
  std::string pattern = (std::filesystem::temp_directory_path() / "bench_collectives.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
  folder_ = pattern;
  machines != nullptr ? start_between(*machines) : start_all(offsets);
}

Measurement::~Measurement() {
  stage_.stop.store(1);
  give_turn(0);
  for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  std::filesystem::remove_all(folder_);
}

bool Measurement::run(int rounds) {
  if (!wait_for(stage_.ready, contenders_.size() * static_cast<std::size_t>(stage_.ranks))) return false;
  std::filesystem::remove_all(folder_);  // all have met; nothing is left if this run is killed
  for (int round = 0; round < rounds; ++round) {
    for (const Contender who : contenders_) {
      stage_.finished.store(0);
      give_turn(who + 1U);
      if (!wait_for(stage_.finished, static_cast<std::size_t>(stage_.ranks))) return false;
    }
  }
  bool right = true;
  for (std::size_t who = 0; who < kContenders; ++who) {
    if (stage_.wrong[who].load() == 0) continue;
    std::fprintf(stderr, "bench: %u results of %s were wrong\n", stage_.wrong[who].load(),
                 kContenderNames[who]);
    right = right && who != kOurs && who < kOursPrivate;  // a peer's time stands
  }
  return right;
}

bool Measurement::has(Contender who) const {
  return std::find(contenders_.begin(), contenders_.end(), who) != contenders_.end();
}

double Measurement::quantile_ms(Contender who, double quantile) const {
  double best = std::numeric_limits<double>::infinity();
  for (int a = 0; a < stage_.algorithms[who].load(); ++a) {
    if (stage_.abandoned[who][static_cast<std::size_t>(a)].load()) continue;
    std::vector<double> slowest;
    const int samples = std::min<int>(kMaxSamples, static_cast<int>(stage_.taken[who][0].load()));
    for (int s = samples > stage_.samples_a_turn ? stage_.samples_a_turn : 0; s < samples; ++s) {
      double time = 0;
      for (int r = 0; r < stage_.ranks; ++r) time = std::max(time, stage_.times[who][a][r][s]);
      slowest.push_back(time);
    }
    const auto at = slowest.begin() + static_cast<long>(quantile * static_cast<double>(slowest.size()));
    std::nth_element(slowest.begin(), at, slowest.end());
    best = std::min(best, *at / 1e6);
  }
  return best;
}

void Measurement::start_all(const std::vector<std::size_t>& offsets) {
  using troupe::SharedMemory;
  const std::size_t bytes = region_bytes(stage_.ranks, stage_.bytes);
  const auto make_region = [&] {
    return std::make_shared<SharedMemory>(SharedMemory::create("bench", bytes, false).value());
  };
  const auto start_ranks = [&](Contender who, const auto& body) {
    contenders_.push_back(who);
    for (int r = 0; r < stage_.ranks; ++r) pids_.push_back(start([&] { body(r); }));
  };
  start_ranks(kOurs, [&, region = make_region()](int r) { perform_ours(stage_, r, region); });
  start_ranks(kCopy, [&](int r) { perform_copy(stage_, r); });
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    start_ranks(on_private(i), [&, region = make_region()](int r) {
      perform_private(stage_, on_private(i), r, offsets[i], region);
    });
  }
#ifdef BENCH_HAS_GLOO
  start_ranks(kGloo, [&](int r) { perform_gloo(stage_, r, folder_, "lo"); });
#endif
#ifdef BENCH_MPIRUN
  contenders_.push_back(kMpi);
  pids_.push_back(
      start_mpi("/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory_.fd()), stage_.ranks));
#endif
}

void Measurement::start_between(const Machines& machines) {
  contenders_ = {kOurs, kWire};
#ifdef BENCH_HAS_GLOO
  contenders_.push_back(kGloo);
#endif
  for (int r = 0; r < stage_.ranks; ++r) {
    for (const Contender who : contenders_) {
      pids_.push_back(start([&] {
        machines.enter(machine_of(r, stage_.ranks));
        if (who == kOurs) perform_ours_over_tcp(stage_, r);
        if (who == kWire) perform_wire(stage_, r);
        if (who == kGloo) perform_gloo(stage_, r, folder_, kWireName);
      }));
    }
  }
}

void Measurement::give_turn(std::uint32_t whose) {
  stage_.turn.store(++turns_ * kTurnsARound + whose);
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&stage_.turn), FUTEX_WAKE, 1 << 20, nullptr, nullptr,
            0);
}

/// Waits for ranks; false when a process ended meanwhile.
bool Measurement::wait_for(const std::atomic<std::uint32_t>& count, std::size_t wanted) {
  while (count.load() < wanted) {
    for (pid_t& pid : pids_) {
      int status = 0;
      if (::waitpid(pid, &status, WNOHANG) == 0) continue;
      std::fprintf(stderr, "bench: a contender ended early\n");
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

std::vector<std::string> skipped_peers() {
  std::vector<std::string> skipped;
#ifndef BENCH_HAS_GLOO
  skipped.emplace_back("Gloo: it was not there at build time (apt-get install libgloo-dev)");
#endif
#ifndef BENCH_MPIRUN
  skipped.emplace_back(
      "OpenMPI: it was not there at build time (apt-get install openmpi-bin libopenmpi-dev)");
#endif
  return skipped;
}

}  // namespace bench
