// soak: some ten thousand calls of mixed sizes under way at any time, while workers, a node and the head are
// killed and a node is stopped for seconds. At the end every call was answered right or failed with a type;
// nothing is unanswered.
//
//   soak [--seconds N] [--under-way N] [--seed N] [--calm]
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/init/init.hpp"
#include "scheduler/init/process_roles.hpp"
#include "tests/e2e/support.hpp"

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kTargets = 6;
constexpr Duration kLastAnswer = 90s;

struct Options {
  int seconds = 600;
  std::size_t under_way = 10'000;
  std::uint64_t seed = 1;
  bool calm = false;  ///< kills and stops nobody
};

struct Echo {
  std::string echo(std::uint64_t index, const std::string& bytes) {
    return std::to_string(index) + "/" + bytes;
  }
  int pid() { return ::getpid(); }
};

/// Of 64 B to 1 MB; most are small, as calls are.
std::size_t size_of(std::uint64_t index) {
  const std::uint64_t die = index * 0x9e3779b97f4a7c15u >> 40;
  if (die % 1000 == 0) return 1'000'000;
  if (die % 100 == 0) return 100'000;
  return die % 10 == 0 ? 8'000 : 64 + die % 400;
}

/// Shared by the pump, the chaos and the callbacks.
class Soak {
 public:
  explicit Soak(const Options& options) : options_(options), targets_(kTargets) {}

  void pump(const Session& session, const std::atomic<bool>& stop) {
    std::uint64_t index = options_.seed << 40;
    for (std::size_t at = 0; !stop; ++at) {
      if (under_way_ >= options_.under_way) {
        std::this_thread::sleep_for(200us);
        continue;
      }
      const auto target = target_of(session, at % kTargets);
      if (!target) continue;
      issue(*target, at % kTargets, index++);
    }
  }

  /// Waits for the last answers. What is open then has no end: a defect. So is a runtime that stalls: calls
  /// that hardly go round in all the time say nothing of what is lost.
  bool finish() {
    eventually([&] { return under_way_ == 0; }, kLastAnswer);
    const std::lock_guard lock(mutex_);
    tally_.unanswered = under_way_;
    std::printf("soak: %s; %zu issued, %zu under way at most; %zu targets started\n",
                tally_.to_string().c_str(), issued_.load(), most_, started_);
    for (const auto& [what, times] : chaos_) std::printf("soak: %zu times: %s\n", times, what.c_str());
    std::fflush(stdout);
    return tally_.wrong == 0 && tally_.unanswered == 0 && tally_.right > 0 &&
           issued_ > 2 * options_.under_way && tally_.all() == issued_.load();
  }

  void happened(const std::string& what) {
    const std::lock_guard lock(mutex_);
    ++chaos_[what];
  }
  pid_t some_worker(std::uint64_t die) {
    const std::lock_guard lock(mutex_);
    const auto& target = targets_[die % kTargets];
    return target.up ? target.pid : -1;  // a dead one's number may be somebody else's by now
  }

 private:
  struct Target {
    ActorHandle<Echo> handle;
    pid_t pid = -1;
    bool starting = false;
    bool up = false;
  };

  /// The actor of that place; starts it again, without waiting, when it is gone.
  std::optional<ActorHandle<Echo>> target_of(const Session& session, std::size_t which) {
    {
      const std::lock_guard lock(mutex_);
      auto& target = targets_[which];
      if (target.up) return target.handle;
      if (std::exchange(target.starting, true)) return std::nullopt;
      ++started_;
    }
    try {
      session.spawn_async<Echo>({.isolated = which % 2 == 0})
          .then([this, which](const Result<ActorHandle<Echo>>& got) {
            if (!got) return came_up(which, {}, -1);
            const auto& handle = *got;
            handle.template call<&Echo::pid>().then([this, which, handle](const Result<int>& pid) {
              pid ? came_up(which, handle, *pid) : came_up(which, {}, -1);
            });
          });
    } catch (const Error&) {
      came_up(which, {}, -1);
    }
    return std::nullopt;
  }
  void came_up(std::size_t which, ActorHandle<Echo> handle, pid_t pid) {
    const std::lock_guard lock(mutex_);
    targets_[which] = {handle, pid, false, pid > 0};
  }

  void issue(const ActorHandle<Echo>& target, std::size_t which, std::uint64_t index) {
    const std::size_t now = ++under_way_;
    ++issued_;
    {
      const std::lock_guard lock(mutex_);
      most_ = std::max(most_, now);
    }
    try {
      target.call<&Echo::echo>(index, pattern(index, size_of(index)))
          .then([this, which, index, target](const Result<std::string>& got) {
            {
              const std::lock_guard lock(mutex_);
              if (!got) {
                tally_.error(got.error());
                if (targets_[which].handle == target) targets_[which].up = false;
              } else if (*got == std::to_string(index) + "/" + pattern(index, size_of(index))) {
                ++tally_.right;
              } else {
                ++tally_.wrong;
              }
            }
            --under_way_;
          });
    } catch (const Error& error) {
      {
        const std::lock_guard lock(mutex_);
        tally_.error(error.info());
        targets_[which].up = false;
      }
      --under_way_;
    }
  }

  const Options options_;
  std::mutex mutex_;
  Tally tally_;
  std::vector<Target> targets_;
  std::map<std::string, std::size_t> chaos_;
  std::atomic<std::size_t> under_way_{0};
  std::atomic<std::size_t> issued_{0};
  std::size_t most_ = 0;
  std::size_t started_ = 0;
};

void sleep_unless(const std::atomic<bool>& stop, Duration time) {
  eventually([&] { return stop.load(); }, time);
}

void chaos(const DriverSession& session, Soak& soak, const Options& options, const std::atomic<bool>& stop) {
  std::mt19937_64 random(options.seed);
  while (!stop) {
    sleep_unless(stop, 500ms + std::chrono::milliseconds(random() % 1500));
    if (stop) return;
    const auto die = random() % 10;
    auto nodes = session.embedded()->node_pids();
    if (!is_alive(nodes.at(1))) nodes.at(1) = -1;
    if (die < 5) {
      const pid_t worker = soak.some_worker(random());
      if (worker > 0 && worker != ::getpid()) ::kill(worker, SIGKILL);
      soak.happened("a worker was killed");
    } else if (die < 8 && nodes.at(1) > 0) {
      const auto how_long = std::chrono::milliseconds(1000 + random() % 2000);
      ::kill(nodes.at(1), SIGSTOP);
      sleep_unless(stop, how_long);
      ::kill(nodes.at(1), SIGCONT);
      soak.happened("the second node was stopped for 1 to 3 s");
    } else if (die == 8 && nodes.at(1) > 0) {
      ::kill(nodes.at(1), SIGKILL);
      soak.happened("the second node was killed");
    } else {
      ::kill(session.embedded()->head_pid(), random() % 2 == 0 ? SIGKILL : SIGTERM);
      soak.happened("the head was killed, or told to end");
    }
  }
}

constexpr const char* kUsage =
    "usage: soak [--seconds N] [--under-way N] [--seed N] [--calm]\n"
    "Calls over two nodes while their processes are killed and stopped: every call must have its end.\n"
    "  --seconds N    how long [600]\n"
    "  --under-way N  calls without an answer at any time [10000]\n"
    "  --seed N       of the chaos [1]\n"
    "  --calm         kills and stops nobody\n";

/// Nothing: the words make no sense.
std::optional<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--calm") {
      options.calm = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (value.empty() || value.size() > 9 || value.find_first_not_of("0123456789") != std::string::npos)
      return std::nullopt;
    const auto number = std::stoul(value);
    if (word == "--seconds") {
      options.seconds = static_cast<int>(number);
    } else if (word == "--under-way" && number > 0) {
      options.under_way = number;
    } else if (word == "--seed") {
      options.seed = number;
    } else {
      return std::nullopt;
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  become_role_if_asked();
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h") {
    std::printf("%s", kUsage);
    return 0;
  }
  const auto parsed = parse(argc, argv);
  if (!parsed) {
    std::fprintf(stderr, "%s", kUsage);
    return 2;
  }
  const Options options = *parsed;
  auto soak = std::unique_ptr<Soak>();  // outlives the session, whose callbacks use it
  const auto session = init(argc, argv, {.nodes = 2});
  soak = std::make_unique<Soak>(options);
  std::atomic<bool> stop{false};
  std::thread pump([&] { soak->pump(session, stop); });
  std::thread breaker([&] {
    if (!options.calm) chaos(session, *soak, options, stop);
  });
  std::this_thread::sleep_for(std::chrono::seconds(options.seconds));
  stop = true;
  breaker.join();
  pump.join();
  const bool good = soak->finish();
  std::printf("soak: %s (seed %llu)\n", good ? "every call has its end" : "FAILED",
              static_cast<unsigned long long>(options.seed));
  return good ? 0 : 1;
}
