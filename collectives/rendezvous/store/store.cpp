#include "collectives/rendezvous/store/store.hpp"

#include <algorithm>

#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

[[noreturn]] void timed_out(const std::string& keys, Duration limit) {
  throw_error({ErrorCode::kTimeout, "nobody set what was waited for in the store",
               keys + " after " + std::to_string(static_cast<std::int64_t>(to_millis(limit))) + " ms",
               "see why the rank that sets it did not get there, or raise the timeout"});
}

}  // namespace

std::string Store::get(const std::string& key, Duration limit) {
  auto value = find(key, limit);
  if (!value) timed_out("'" + key + "'", limit);
  return *std::move(value);
}

void Store::wait(const std::vector<std::string>& keys, Duration limit) {
  const MonotonicClock clock;
  const Instant until = clock.now() + limit;
  for (const auto& key : keys) {
    if (find(key, std::max(until - clock.now(), Duration::zero()))) continue;
    std::string missing;
    for (const auto& other : keys) {
      if (!find(other)) missing += (missing.empty() ? "'" : ", '") + other + "'";
    }
    if (!missing.empty()) timed_out(missing, limit);
  }
}

}  // namespace troupe::collectives
