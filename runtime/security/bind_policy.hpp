/// Where a cluster may listen. Accidents of our neighbours (an unauthenticated port on every interface) began
/// with a default; here it takes keys to leave the machine.
#pragma once

#include "runtime/core/endpoint.hpp"
#include "runtime/core/result.hpp"

namespace troupe {

/// Whether a socket may be bound to `address`: a numeric address or "localhost", and any address but loopback
/// only when `have_keys`. Pure. Errors: kBadConfig, kRefused.
Result<void> check_bind(const Endpoint& address, bool have_keys);

}  // namespace troupe
