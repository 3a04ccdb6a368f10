/// bench_abort: from an abort until every rank of the group has left the operation it waited in, on one
/// machine. Ranks are processes; the one that aborts does not take part in the operation.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "collectives/native/native_group.hpp"
#include "runtime/core/fd.hpp"

using namespace troupe;
using namespace troupe::collectives;

namespace {

constexpr int kMaxRanks = 64;
constexpr const char* kHelp =
    R"(bench_abort: from an abort until every rank has left the operation it waited in.

  --ranks LIST   numbers of processes, default 2,4,8
  --rounds N     groups that are made and aborted, default 100
  --json FILE    also write one JSON object a line
  --help         this text

The ranks wait in an all-reduce for 20 ms, so they sleep when the abort comes. Medians, of the last rank to leave.
)";

/// What the processes of one round share.
struct Board {
  std::array<std::atomic<std::int64_t>, kMaxRanks> left;  ///< nanoseconds of the monotonic clock
};

[[noreturn]] void rank_process(NativeGroupOptions options, Board& board) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto rank = static_cast<std::size_t>(options.rank);
  const auto group = make_native_group(std::move(options));
  std::vector<float> values(1 << 20);
  try {
    group->all_reduce(std::span(values))->wait();
  } catch (const CollectiveAborted&) {
    board.left[rank] = MonotonicClock().now().count();
    ::_exit(0);
  }
  ::_exit(1);
}

/// Milliseconds from the abort to the last rank out, or a negative number when a rank did not leave by it.
double round_of(int ranks) {
  const auto region = std::make_shared<SharedMemory>(
      SharedMemory::create("abort", native_region_bytes(ranks, 1 << 12), false).value());
  const SharedMemory memory = SharedMemory::create("board", sizeof(Board), false).value();
  auto& board = *new (memory.data()) Board;
  const auto options = [&](int rank) {
    return NativeGroupOptions{
        .rank = rank, .size = ranks, .generation = {1, 1}, .region = region, .data_bytes = 1 << 12};
  };
  std::vector<pid_t> pids;
  for (int r = 1; r < ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) rank_process(options(r), board);
    pids.push_back(pid);
  }
  const auto group = make_native_group(options(0));
  ::usleep(20'000);
  const Instant aborted_at = MonotonicClock().now();
  group->abort("the benchmark says so");
  bool good = true;
  for (const pid_t pid : pids) {
    int status = 0;
    good = ::waitpid(pid, &status, 0) == pid && status == 0 && good;
  }
  std::int64_t last = 0;
  for (const auto& at : board.left) last = std::max(last, at.load());
  return good ? static_cast<double>(last - aborted_at.count()) / 1e6 : -1;
}

[[noreturn]] void usage_error(const std::string& what) {
  std::fprintf(stderr, "bench_abort: %s (see --help)\n", what.c_str());
  std::exit(2);
}

int number(const std::string& text, int least, int most) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > most) {
    usage_error("'" + text + "' is not a number from " + std::to_string(least) + " to " +
                std::to_string(most));
  }
  return static_cast<int>(value);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> ranks{2, 4, 8};
  int rounds = 100;
  std::string json_path;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (flag != "--ranks" && flag != "--rounds" && flag != "--json")
      usage_error("unknown flag '" + flag + "'");
    if (++i == argc) usage_error(flag + " needs a value");
    const std::string value = argv[i];
    if (flag == "--json") json_path = value;
    if (flag == "--rounds") rounds = number(value, 1, 10000);
    if (flag != "--ranks") continue;
    ranks.clear();
    for (std::size_t at = 0; at <= value.size();) {
      const std::size_t comma = std::min(value.find(',', at), value.size());
      ranks.push_back(number(value.substr(at, comma - at), 2, kMaxRanks));
      at = comma + 1;
    }
  }
  std::FILE* json = nullptr;
  if (!json_path.empty() && (json = std::fopen(json_path.c_str(), "w")) == nullptr) {
    std::perror(("bench_abort: cannot write " + json_path).c_str());
    return 1;
  }
  for (const int n : ranks) {
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
      times.push_back(round_of(n));
      if (times.back() < 0) {
        std::fprintf(stderr, "bench_abort: a rank did not leave by the abort\n");
        return 1;
      }
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2], worst = times.back();
    std::printf("n=%-3d all out after %.3f ms (median of %d; the worst %.3f ms)\n", n, median, rounds, worst);
    if (json != nullptr) {
      std::fprintf(json,
                   "{\"bench\":\"abort\",\"case\":\"n=%d\",\"ours\":%.6f,\"worst\":%.6f,\"unit\":\"ms\"}\n",
                   n, median, worst);
    }
  }
  return json == nullptr || std::fclose(json) == 0 ? 0 : 1;
}
