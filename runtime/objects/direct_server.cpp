#include "runtime/objects/direct_server.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::objects {

Result<std::unique_ptr<DirectServer>> DirectServer::start(const std::string& host, Find find,
                                                          TransferDeadline::Limits limits) {
  auto listener = DataListener::bind({host, 0});
  if (!listener) return listener.error();
  try {
    return std::unique_ptr<DirectServer>(new DirectServer(*std::move(listener), std::move(find), limits));
  } catch (const Error& error) {
    return error.info();
  }
}

DirectServer::DirectServer(DataListener listener, Find find, TransferDeadline::Limits limits)
    : listener_(std::move(listener)), find_(std::move(find)), limits_(limits) {
  SystemRandom().fill(key_);
  thread_ = start_quiet_thread([this] { run(); });
}

DirectServer::~DirectServer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& one : connections_) ::shutdown(one.socket.get(), SHUT_RDWR);
  }
  ::shutdown(listener_.fd(), SHUT_RDWR);  // ends the wait for the next one
  thread_.join();
  for (auto& one : connections_) one.thread.join();
}

DirectAddress DirectServer::address() const {
  return {to_string(listener_.endpoint()), wire::Bytes(key_.begin(), key_.end())};
}

std::size_t DirectServer::connections() {
  const std::lock_guard lock(mutex_);
  reap();
  return connections_.size();
}

/// REQUIRES: the lock. A thread that is over needs it no more.
void DirectServer::reap() {
  connections_.remove_if([](Connection& one) {
    if (one.over) one.thread.join();
    return one.over;
  });
}

void DirectServer::run() {
  for (;;) {
    pollfd ready{listener_.fd(), POLLIN, 0};
    ::poll(&ready, 1, -1);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    accept_one();
  }
}

void DirectServer::accept_one() {
  UniqueFd socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    // Out of descriptors or memory: the connection stays where it is, and its other end gives up.
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return;
  }
  const std::lock_guard lock(mutex_);
  reap();
  if (stopping_ || connections_.size() >= kMostConnections) return;
  Connection& one = connections_.emplace_back();
  one.socket = std::move(socket);
  try {
    one.thread = start_quiet_thread([this, &one] {
      if (auto served = serve(one.socket.get()); !served)
        log(LogLevel::kDebug, "an object was not given: " + served.error().message());
      const std::lock_guard over(mutex_);
      one.socket.reset();
      one.over = true;
    });
  } catch (const Error& error) {  // its other end takes the links
    log(LogLevel::kWarning, std::string("no thread for a direct connection: ") + error.what());
    connections_.pop_back();
  }
}

Result<void> DirectServer::serve(int fd) {
  const MonotonicClock clock;
  TransferDeadline first(0, clock.now(), {kHandshake, kHandshake});
  if (auto proved = prove_owner(fd, key_, first); !proved) return proved.error();
  const auto asked = read_asked(fd, first);
  if (!asked) return asked.error();
  const auto object = find_(asked->number);
  const bool gives = object != nullptr && why_not_given(asked->part, object->view().size()).empty();
  const auto bytes = gives ? object->view().subspan(asked->part.offset, asked->part.bytes) : wire::ByteView();
  TransferDeadline deadline(bytes.size(), clock.now(), limits_);
  return give(fd, bytes, deadline);
}

}  // namespace troupe::objects
