#include "scheduler/init/join_cluster.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>

#include "runtime/core/random.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "scheduler/init/supervisor.hpp"

namespace troupe {
namespace {

constexpr Duration kComesUp = std::chrono::seconds(60);
constexpr Duration kHeadAnswers = std::chrono::seconds(10);
constexpr Duration kHeadListens = std::chrono::seconds(2);
constexpr std::size_t kLongestToken = 4096;

}  // namespace

NodeIdentity NodeIdentity::generate() {
  return {NodeId{SystemRandom().next()}, CurveKeyPair::generate()};
}

Result<void> tell_departed(const HeadContact& head, const NodeIdentity& node, const std::string& how) {
  return tell_head({head.address, head.head_key, node.keys}, wire::ToHead{cluster::NodeLeft{node.id, how}},
                   kHeadListens);
}

Child launch_member(const ClusterFolder& folder, const HeadContact& head, const MemberOptions& options) {
  wire::NodeConfig config;
  config.id = options.identity.id;
  config.name = options.name;
  config.head = to_string(head.address);
  config.address =
      to_string(Endpoint{options.listen.empty() ? address_facing(head.address).value() : options.listen, 0});
  config.cpu_e4 = std::llround(options.cpus * cluster::kCpu);
  config.gpus = std::max(-1, options.gpus);
  config.memory = options.memory;
  config.other = options.other;
  config.gateway = options.gateway;
  config.hosts_driver = options.gateway;
  config.package = options.package;
  config.drain_ms = options.drain / std::chrono::milliseconds(1);
  if (!options.gateway) config.folder = folder.path();
  const CurveKeyPair& keys = options.identity.keys;
  folder.ask(head, wire::AdmitAsk{1, config.id, to_string(keys.public_key())}, kHeadAnswers).value();
  auto bundle = hand_over({keys, head.head_key, {}}).value();
  auto child = start_child({.role = "node"}).value();
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(bundle));
  send_control(child.link, {}, config, std::move(fds));
  return child;
}

Child start_member(const ClusterFolder& folder, const HeadContact& head, const MemberOptions& options) {
  auto child = launch_member(folder, head, options);
  auto answer = receive_control(child.link, kComesUp);
  if (answer && std::holds_alternative<wire::Ready>(answer->message)) return child;
  end_child(child, Duration(0));
  if (answer) {
    if (const auto* failed = std::get_if<wire::NotReady>(&answer->message)) throw_error(failed->error);
  }
  throw_error({ErrorCode::kUnavailable, "this program's node in the cluster did not come up",
               answer ? "it said something else" : answer.error().why,
               "look at the lines above; TROUPE_LOG=debug prints more"});
}

Result<std::string> address_facing(const Endpoint& there) {
  const std::string what = "cannot find this machine's address towards " + to_string(there);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(there.host.c_str(), std::to_string(there.port).c_str(), &hints, &found);
  if (rc != 0) return ErrorInfo{ErrorCode::kUnavailable, what, ::gai_strerror(rc), "check the name"};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, &::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    // Connecting a datagram socket sends nothing: it asks the kernel for the route.
    const UniqueFd fd(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char host[NI_MAXHOST];
    if (fd && ::connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, host, sizeof host, nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      return std::string(host);
    }
  }
  return ErrorInfo{ErrorCode::kUnavailable, what, "no route", "check the network, or give --listen ADDRESS"};
}

Result<JoinToken> read_token_file(const std::string& path) {
  const bool input = path == "-";
  const UniqueFd file(input ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                            : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file)
    return io_error("cannot read the join token in " + path, errno,
                    "write what `troupe token` prints to that file");
  struct stat info {};
  if (!input && ::fstat(file.get(), &info) == 0 && S_ISDIR(info.st_mode))
    return ErrorInfo{ErrorCode::kBadInput, "cannot read the join token in " + path, "it is a folder",
                     "name the file that has what `troupe token` printed"};
  if (!input && (::fstat(file.get(), &info) != 0 || (S_ISREG(info.st_mode) && (info.st_mode & 077) != 0))) {
    return ErrorInfo{ErrorCode::kRefused, "refused the join token in " + path,
                     "others may read the file, so it is no secret",
                     "chmod 600 it and take a new token, or give it on standard input with --token-file -"};
  }
  std::string text(kLongestToken + 1, '\0');
  std::size_t size = 0;
  for (ssize_t got = 0;
       size < text.size() && (got = ::read(file.get(), text.data() + size, text.size() - size)) > 0;) {
    size += static_cast<std::size_t>(got);
    if (input && text.find('\n') < size) break;  // a person pastes a line
  }
  text.resize(size);
  const auto end = text.find_last_not_of(" \t\r\n");
  auto token = read_join_token(std::string_view(text).substr(0, end == std::string::npos ? 0 : end + 1));
  wipe(std::as_writable_bytes(std::span(text)));
  return token;
}

}  // namespace troupe
