#include "runtime/link/zmq/zmq_strangers.hpp"

#include <sys/resource.h>

#include <algorithm>

#include "runtime/link/zmq/zmq_connection.hpp"

namespace troupe::zmq_link {
namespace {

constexpr std::size_t kFewest = 64;
constexpr std::size_t kMost = 4096;

}  // namespace

std::size_t Strangers::most() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewest;
  return std::clamp<std::size_t>(limit.rlim_cur / 4, kFewest, kMost);
}

void Strangers::accepted(int fd, std::uint16_t port, Instant now) {
  from_[fd] = peer_address(fd);
  oldest_first_.push_back(fd);
  while (!oldest_first_.empty() && (from_.size() > most() || !from_.contains(oldest_first_.front()))) {
    const int oldest = oldest_first_.front();
    oldest_first_.pop_front();
    if (from_.erase(oldest) == 0) continue;
    noise_("closed a connection: more than " + std::to_string(most()) + " have not finished their handshake",
           now);
    close_connection(oldest, port);
  }
}

void Strangers::closed(int fd, Instant now) {
  const auto stranger = from_.extract(fd);
  if (!stranger) return;
  if (refused_ > 0) {
    --refused_;
  } else {
    noise_("closed a connection from " + stranger.mapped() + ": no handshake of ours came from there", now);
  }
}

}  // namespace troupe::zmq_link
