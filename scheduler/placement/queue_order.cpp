#include "scheduler/placement/queue_order.hpp"

#include <algorithm>
#include <tuple>

#include "runtime/core/assert.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::scheduler {
namespace {

using cluster::format_cpus;

std::string over(const QueueLoad& load, const char* what, std::int64_t limit, std::int64_t used,
                 std::int64_t more) {
  if (limit < 0 || more == 0 || used + more <= limit) return "";
  const std::string unit = std::string(" ") + what;
  return "queue " + load.queue.name + " holds " + format_cpus(used) + unit + " of its quota of " +
         format_cpus(limit) + ", and " + format_cpus(more) + " more " +
         (more > limit ? "never fit" : "are too many");
}

/// Parts of nothing are counted as all of it.
double part_of(std::int64_t used, std::int64_t all) {
  if (used <= 0) return 0;
  return all <= 0 ? 1.0 : static_cast<double>(used) / static_cast<double>(all);
}

double dominant_share(const QueueLoad& load, const Room& cluster) {
  return std::max(part_of(load.used.cpu_e4, cluster.cpu_e4), part_of(load.used.gpu_e4, cluster.gpu_e4)) /
         static_cast<double>(load.queue.weight_e4) * 10'000;
}

}  // namespace

std::string over_quota(const QueueLoad& load, const Room& more) {
  std::string why = over(load, "CPU", load.queue.cpu_e4, load.used.cpu_e4, more.cpu_e4);
  return why.empty() ? over(load, "GPU", load.queue.gpu_e4, load.used.gpu_e4, more.gpu_e4) : why;
}

std::string stuck_beside_programs(const QueueLoad& load, const Room& more) {
  const auto stuck = [](const char* what, std::int64_t limit, std::int64_t programs, std::int64_t asked) {
    if (limit < 0 || asked == 0 || asked > limit || programs + asked <= limit) return std::string();
    return "; programs of its jobs hold " + format_cpus(programs) + " " + what +
           " of that themselves, beside which these never fit: stop a job of it, or raise the quota";
  };
  std::string why = stuck("CPU", load.queue.cpu_e4, load.programs.cpu_e4, more.cpu_e4);
  return why.empty() ? stuck("GPU", load.queue.gpu_e4, load.programs.gpu_e4, more.gpu_e4) : why;
}

std::int64_t dominant_share_e4(const QueueLoad& load, const Room& cluster) {
  return static_cast<std::int64_t>(dominant_share(load, cluster) * 10'000);
}

std::size_t next_turn(const std::vector<QueueTurn>& turns, const Room& cluster) {
  TROUPE_ASSERT(!turns.empty(), "somebody waits");
  const auto key = [&](const QueueTurn& turn) {
    return std::tuple(dominant_share(*turn.load, cluster), -std::int64_t{turn.priority}, turn.number);
  };
  const auto first = std::min_element(turns.begin(), turns.end(),
                                      [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return static_cast<std::size_t>(first - turns.begin());
}

}  // namespace troupe::scheduler
