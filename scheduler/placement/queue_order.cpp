#include "scheduler/placement/queue_order.hpp"

#include <algorithm>
#include <tuple>

#include "runtime/core/assert.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::scheduler {
namespace {

using cluster::amount_of;
using cluster::format_cpus;

/// One resource that a queue has a quota of.
struct Limited {
  std::string_view name;
  std::int64_t limit = 0;
  std::int64_t used = 0;
  std::int64_t programs = 0;
  std::int64_t more = 0;
  std::string number(std::int64_t amount) const {
    return name == cluster::kMemory ? cluster::format_bytes(amount) : format_cpus(amount);
  }
  std::string unit() const { return (name == cluster::kMemory ? " of " : " ") + std::string(name); }
};

/// What `says` of the first that it says something of.
template <class Says>
std::string first_of(const QueueLoad& load, const Room& more, Says says) {
  const cluster::QueueRecord& queue = load.queue;
  std::string why;
  const auto ask = [&](const Limited& one) {
    if (why.empty() && one.limit >= 0 && one.more != 0) why = says(one);
  };
  ask({"CPU", queue.cpu_e4, load.used.cpu_e4, load.programs.cpu_e4, more.cpu_e4});
  ask({"GPU", queue.gpu_e4, load.used.gpu_e4, load.programs.gpu_e4, more.gpu_e4});
  for (const auto& [name, limit] : queue.other)
    ask({name, limit, amount_of(load.used.other, name), amount_of(load.programs.other, name),
         amount_of(more.other, name)});
  return why;
}

/// Parts of nothing are counted as all of it.
double part_of(std::int64_t used, std::int64_t all) {
  if (used <= 0) return 0;
  return all <= 0 ? 1.0 : static_cast<double>(used) / static_cast<double>(all);
}

double dominant_share(const QueueLoad& load, const Room& cluster) {
  double most =
      std::max(part_of(load.used.cpu_e4, cluster.cpu_e4), part_of(load.used.gpu_e4, cluster.gpu_e4));
  for (const auto& [name, used] : load.used.other)
    most = std::max(most, part_of(used, amount_of(cluster.other, name)));
  return most / static_cast<double>(load.queue.weight_e4) * 10'000;
}

}  // namespace

std::string over_quota(const QueueLoad& load, const Room& more) {
  return first_of(load, more, [&](const Limited& one) {
    if (one.used + one.more <= one.limit) return std::string();
    return "queue " + load.queue.name + " holds " + one.number(one.used) + one.unit() + " of its quota of " +
           one.number(one.limit) + ", and " + one.number(one.more) + " more " +
           (one.more > one.limit
                ? "never fit: ask for less, or raise the quota (troupe queue set " + load.queue.name + ")"
                : "are too many");
  });
}

std::string stuck_beside_programs(const QueueLoad& load, const Room& more) {
  return first_of(load, more, [](const Limited& one) {
    if (one.more > one.limit || one.programs + one.more <= one.limit) return std::string();
    return "; programs of its jobs hold " + one.number(one.programs) + one.unit() +
           " of that themselves, beside which these never fit: stop a job of it, or raise the quota";
  });
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
