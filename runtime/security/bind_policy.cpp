#include "runtime/security/bind_policy.hpp"

#include <arpa/inet.h>

namespace troupe {

Result<void> check_bind(const Endpoint& address, bool have_keys) {
  in_addr v4{};
  const bool numeric = ::inet_pton(AF_INET, address.host.c_str(), &v4) == 1 || is_ipv6(address.host);
  if (!numeric && address.host != "localhost") {
    return ErrorInfo{ErrorCode::kBadConfig, "cannot listen on '" + address.host + "'",
                     "a name may stand for several addresses",
                     "give an address of this machine, for example 127.0.0.1, or 0.0.0.0 for all"};
  }
  if (have_keys || is_loopback(address.host)) return {};
  return ErrorInfo{ErrorCode::kRefused, "refused to listen on " + to_string(address),
                   "other machines could reach it and there are no keys to tell them apart",
                   "start the cluster with keys (troupe start generates them), or listen on 127.0.0.1"};
}

}  // namespace troupe
