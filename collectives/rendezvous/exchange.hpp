/// An all-gather of short texts through a store.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "collectives/rendezvous/store.hpp"

namespace troupe::collectives {

struct ExchangeOptions {
  int rank = 0;
  int size = 1;
  Duration timeout = std::chrono::minutes(5);
  std::function<std::string()> hint = [] { return std::string(); };  ///< rank 0's, behind who is missing
  std::string purpose;  ///< of the error: "cannot form the process group 'default'"
  /// How a rank is called in errors.
  std::function<std::string(int)> name = [](int r) { return std::to_string(r); };
};

/// Every rank's `value` (at most 48 KiB), by rank. `topic`: the prefix of the keys, used once. Rank 0 gathers
/// and publishes, so that n ranks make n requests each, and not n squared. Throws Timeout, which lists the
/// ranks that are missing, on every rank that is there.
std::vector<std::string> exchange(Store& store, const std::string& topic, std::string_view value,
                                  const ExchangeOptions& options);

}  // namespace troupe::collectives
