#include "runtime/client/start_group.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::detail {
namespace {

constexpr std::size_t kMostMembers = 1000;  // bundles of a group
constexpr double kMostCpus = 100'000;
constexpr double kMostGpus = 1024;

/// What makes no sense is refused when the first one is spawned.
bool makes_sense(const ActorOptions& options) {
  const double cpus = options.num_cpus, gpus = options.num_gpus;
  const bool are_gpus = gpus >= 0 && gpus <= kMostGpus && (gpus <= 1 || gpus == std::floor(gpus));
  return cpus >= 0 && cpus <= kMostCpus && are_gpus && (gpus == 0 || options.isolated);
}

}  // namespace

Future<wire::GroupAnswer> start_group(ProcessGate& process, std::size_t members,
                                      const ActorOptions& options) {
  if (members == 0 || members > kMostMembers || options.here || options.node || options.placement_group ||
      !makes_sense(options))
    return {};
  const cluster::BundleDemand each{
      std::llround(options.num_cpus * cluster::kCpu), std::llround(options.num_gpus * cluster::kGpu),
      cluster::other_resources(options.memory, options.resources, options.labels)};
  if (!cluster::wrong_about(each.other).empty()) return {};  // refused when the first one is spawned
  if (each.cpu_e4 == 0 && each.gpu_e4 == 0 && each.other.amounts.empty()) return {};  // they hold nothing
  if (options.group_strategy > troupe_last(options.group_strategy))
    throw BadConfig("cannot spawn a group",
                    "there is no strategy " + std::to_string(static_cast<int>(options.group_strategy)),
                    "use kPack, kSpread, kStrictPack or kStrictSpread");
  cluster::GroupSpec spec{{}, {}, options.group_strategy, std::vector(members, each), true};
  auto asked = process.group(cluster::GroupVerb::kMake, {}, std::move(spec));
  return asked == nullptr ? Future<wire::GroupAnswer>() : Future<wire::GroupAnswer>(std::move(asked));
}

bool wait_and_say(CallState& spawn, Duration timeout, Duration every,
                  const std::function<void(const std::string&)>& say) {
  const MonotonicClock clock;
  const Instant deadline = clock.now() + timeout;
  std::string said;
  for (;;) {
    const Duration left = deadline - clock.now();
    if (spawn.wait(std::clamp(left, Duration::zero(), every))) return true;
    if (left <= every) return false;
    if (const std::string why = spawn.waits_for(); !why.empty() && why != said) say(said = why);
  }
}

}  // namespace troupe::detail
