/// HOST:PORT, as people write it and as sockets need it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/result.hpp"

namespace troupe {

/// Where to listen or to connect. The host is a name, an IPv4 or an IPv6 address (without brackets).
struct Endpoint {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: any free port (to listen only)
  bool operator==(const Endpoint&) const = default;
};

/// Reads "host:port" or "[ipv6]:port". Total: any text gives an endpoint or an error that quotes none of it
/// but its length, so that a secret pasted in the wrong place is not printed.
Result<Endpoint> parse_endpoint(std::string_view text);
/// "host:port", or "[ipv6]:port".
std::string to_string(const Endpoint& endpoint);
/// Whether `host` is a numeric IPv6 address.
bool is_ipv6(const std::string& host);
/// Whether only processes of this machine can reach it: 127.0.0.0/8, ::1 or "localhost".
bool is_loopback(const std::string& host);

}  // namespace troupe
