#include "collectives/rendezvous/connect/address.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>

#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives {

std::string who_we_are() {
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  return "pid " + std::to_string(::getpid()) + " on " + host;
}
namespace {

bool is_numeric(const std::string& host) {
  in_addr v4{};
  return ::inet_pton(AF_INET, host.c_str(), &v4) == 1 || is_ipv6(host);
}

ErrorInfo unresolved(const std::string& host, std::string why) {
  return {ErrorCode::kUnavailable, "cannot find the host '" + host + "'", std::move(why),
          "give a name that this machine can look up, or a numeric address"};
}

/// What the resolver finds, however long it takes.
Result<std::string> look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return unresolved(host, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(list, ::freeaddrinfo);
  std::string v6;
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    if (at->ai_family == AF_INET) return address_text(at->ai_addr);
    if (at->ai_family == AF_INET6 && v6.empty()) v6 = address_text(at->ai_addr);
  }
  if (v6.empty()) return unresolved(host, "it has no address");
  return v6;
}

}  // namespace

Result<std::string> resolve(const std::string& host, Duration limit) {
  if (is_numeric(host)) return host;
  if (host == "localhost") return std::string("127.0.0.1");
  // The resolver has no deadline, so its thread may outlive the wait for it.
  auto answer = std::make_shared<std::promise<Result<std::string>>>();
  auto found = answer->get_future();
  start_quiet_thread([answer, host] { answer->set_value(look_up(host)); }).detach();
  if (found.wait_for(limit) == std::future_status::ready) return found.get();
  auto error = unresolved(host, "the look-up did not end in time");
  error.code = ErrorCode::kTimeout;
  return error;
}

SocketAddress abstract_address(const std::string& name) {
  SocketAddress address;
  auto& where = reinterpret_cast<sockaddr_un&>(address.storage);
  where.sun_family = AF_UNIX;
  const std::string full = "troupe-" + name.substr(0, 64);  // after a zero byte
  std::memcpy(where.sun_path + 1, full.data(), full.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
  return address;
}

bool is_same_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

Result<UniqueFd> dial_abstract(const std::string& name) {
  const auto unavailable = [](const char* why) {
    return ErrorInfo{ErrorCode::kUnavailable, "cannot connect within this host", why, ""};
  };
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return io_error("cannot make a socket", errno, "raise ulimit -n");
  const auto address = abstract_address(name);
  if (::connect(fd.get(), address.get(), address.length) != 0) return unavailable(std::strerror(errno));
  if (!is_same_user(fd.get())) return unavailable("another user listens there");
  return fd;
}

Result<std::string> own_address(int fd) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return io_error("cannot read the address of a socket", errno);
  }
  return address_text(reinterpret_cast<sockaddr*>(&own));
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = "";
  const ssize_t n = ::readlink("/proc/self/ns/net", space, sizeof space - 1);
  return boot + " " + std::string(space, n > 0 ? static_cast<std::size_t>(n) : 0) + " " +
         std::to_string(::geteuid());
}

}  // namespace troupe::collectives
