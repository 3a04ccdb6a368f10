#include "runtime/objects/direct_client.hpp"

#include <sys/socket.h>

#include <string>
#include <utility>

#include "runtime/core/connect/tcp.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::objects {

DirectClient::~DirectClient() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& one : transfers_)
      fail(*one, {ErrorCode::kUnavailable, "an object is not fetched", "this process ends", ""});
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

bool DirectClient::fetch(Wanted wanted, Then then) {
  const auto parts = split(wanted.bytes, kThreads);
  const auto transfer = std::make_shared<Transfer>();
  transfer->wanted = std::move(wanted);
  transfer->then = std::move(then);
  transfer->parts_left = parts.size();
  const std::lock_guard lock(mutex_);
  const std::size_t waiting = tasks_.size() + parts.size();
  try {
    for (; threads_.size() < kThreads && idle_ < waiting; ++idle_)
      threads_.push_back(start_quiet_thread([this] { run(); }));
  } catch (const Error& error) {  // those that there are bring all parts
    log(LogLevel::kWarning, std::string("no thread for direct connections: ") + error.what());
    if (threads_.empty()) return false;
  }
  transfers_.insert(transfer);
  for (const Part& part : parts) tasks_.push_back({transfer, part});
  changed_.notify_all();
  return true;
}

void DirectClient::abort(const std::function<bool(ProcessAddress)>& is_down, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (const auto& one : transfers_) {
    if (is_down(one->wanted.name.owner))
      fail(*one, {ErrorCode::kUnavailable, "a direct connection broke", "its owner is gone: " + reason, ""});
  }
}

/// REQUIRES: the lock. Its other parts end soon.
void DirectClient::fail(Transfer& transfer, const ErrorInfo& why) {
  if (transfer.failed) return;
  transfer.failed = why;
  for (const int socket : transfer.sockets) ::shutdown(socket, SHUT_RDWR);
}

void DirectClient::run() {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      --idle_;
    }
    end_part(task.transfer, fetch_part(*task.transfer, task.part));
    const std::lock_guard lock(mutex_);
    ++idle_;
  }
}

Result<void> DirectClient::fetch_part(Transfer& transfer, const Part& part) {
  const Wanted& wanted = transfer.wanted;
  {
    const std::lock_guard lock(mutex_);
    if (transfer.failed) return *transfer.failed;
  }
  const auto at = parse_endpoint(wanted.at.address);
  if (!at) return at.error();
  auto socket = dial(*at, kConnect);
  if (!socket) return socket.error();
  const int fd = socket->get();
  {
    const std::lock_guard lock(mutex_);
    if (transfer.failed) return *transfer.failed;
    transfer.sockets.insert(fd);
  }
  const MonotonicClock clock;
  TransferDeadline first(0, clock.now(), {kConnect, kConnect});
  auto taken = prove_reader(fd, KeyView(wanted.at.key.data(), 32), first);
  if (taken) taken = ask_for(fd, {wanted.name.number, part}, first);
  TransferDeadline deadline(part.bytes, clock.now(), limits_);
  if (taken) taken = take(fd, part, wanted.memory, deadline);
  const std::lock_guard lock(mutex_);  // the number of a closed socket is another's
  transfer.sockets.erase(fd);
  socket->reset();
  return taken;
}

void DirectClient::end_part(const TransferPtr& transfer, Result<void> result) {
  Then then;
  {
    const std::lock_guard lock(mutex_);
    if (!result) fail(*transfer, result.error());
    if (--transfer->parts_left > 0) return;
    transfers_.erase(transfer);
    then = std::move(transfer->then);
  }
  then(transfer->failed ? Result<void>(*transfer->failed) : Result<void>());
}

}  // namespace troupe::objects
