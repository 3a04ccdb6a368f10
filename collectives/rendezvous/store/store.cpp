#include "collectives/rendezvous/store/store.hpp"

#include "runtime/core/error.hpp"

namespace troupe::collectives {

std::string Store::get(const std::string& key, Duration limit) {
  if (auto value = find(key, limit)) return *std::move(value);
  throw_error({ErrorCode::kTimeout, "nobody set what was waited for in the store",
               "'" + key + "' after " + std::to_string(static_cast<std::int64_t>(to_millis(limit))) + " ms",
               "see why the rank that sets it did not get there, or raise the timeout"});
}

}  // namespace troupe::collectives
