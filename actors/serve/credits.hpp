/// How many batches a replica takes from each proxy at a time. Pure.
#pragma once

#include <cstdint>
#include <map>

#include "actors/serve/deployment_types.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::serve {

/// Two from a proxy that is alone: one that is computed, and one behind it. One from each of several: the
/// others' keep the replica busy, and what waits in a proxy can yet go to another replica. A proxy that sent
/// nothing for a second does not count. Not thread-safe.
class Credits {
 public:
  /// Of the proxy that a batch came from now.
  std::uint32_t grant(ProxyId proxy, Instant now) {
    sent_[proxy] = now;
    std::erase_if(sent_, [&](const auto& one) { return now - one.second > kForget; });
    return sent_.size() == 1 ? 2 : 1;
  }

 private:
  static constexpr Duration kForget = std::chrono::seconds(1);
  std::map<ProxyId, Instant> sent_;
};

}  // namespace troupe::serve
