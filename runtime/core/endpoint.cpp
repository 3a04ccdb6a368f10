#include "runtime/core/endpoint.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace troupe {

namespace {

constexpr std::size_t kMaxHostChars = 253;  // RFC 1035

ErrorInfo not_an_endpoint(std::size_t chars, std::string why) {
  return {ErrorCode::kBadInput, "cannot read an address of " + std::to_string(chars) + " characters",
          std::move(why), "write HOST:PORT, for example 127.0.0.1:6380 or [::1]:6380"};
}

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
         c == '_';
}

}  // namespace

bool is_ipv6(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return not_an_endpoint(text.size(), "it has no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.empty() || host.size() > kMaxHostChars + 2) return not_an_endpoint(text.size(), "it has no host");

  Endpoint endpoint;
  if (host.front() == '[' && host.back() == ']') {
    endpoint.host = host.substr(1, host.size() - 2);
    // inet_pton reads up to the first zero byte, so one in the middle must not pass.
    if (endpoint.host.find('\0') != std::string::npos || !is_ipv6(endpoint.host)) {
      return not_an_endpoint(text.size(), "what is in brackets is not an IPv6 address");
    }
  } else {
    endpoint.host = host;
    if (!std::all_of(host.begin(), host.end(), is_name_char)) {
      return not_an_endpoint(text.size(), "the host has a character that no host name has");
    }
  }
  unsigned port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size() || port > 65535) {
    return not_an_endpoint(text.size(), "the port is not a number from 0 to 65535");
  }
  endpoint.port = static_cast<std::uint16_t>(port);
  return endpoint;
}

std::string to_string(const Endpoint& endpoint) {
  const std::string port = ":" + std::to_string(endpoint.port);
  return endpoint.host.find(':') == std::string::npos ? endpoint.host + port
                                                      : "[" + endpoint.host + "]" + port;
}

}  // namespace troupe
