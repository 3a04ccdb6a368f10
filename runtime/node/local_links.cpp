#include "runtime/node/local_links.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "runtime/core/log.hpp"
#include "runtime/node/dump_request.hpp"
#include "runtime/node/gpus.hpp"
#include "runtime/node/library_path.hpp"
#include "runtime/node/route.hpp"

namespace troupe::node {
namespace {

/// Workers are offered to the kernel before the node, the node before the head.
constexpr int kWorkerOomScore = 500;
constexpr int kMessagesATurn = 64;
/// What a dying process may have sent that nobody has read: more than a socket's buffer holds.
constexpr int kLastMessages = 65536;

Result<UniqueFd> duplicate_of(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return io_error("cannot start a worker", errno, "raise ulimit -n");
  return copy;
}

ErrorInfo gone() {
  return {ErrorCode::kUnavailable, "no descriptor", "that process is gone", ""};
}

}  // namespace

LocalLinks::LocalLinks(EventLoop& loop, std::size_t stuck_bytes, std::optional<ForkServer> copies,
                       Hooks hooks)
    : loop_(loop),
      stuck_bytes_(stuck_bytes),
      copies_(std::move(copies)),
      hooks_(std::move(hooks)),
      deaths_([this](ProcessId process) {
        loop_.post([this, process] {
          const Local* local = find(process);
          if (local == nullptr || local->child.pid < 0) return;
          // The thread that held the lock has ended, and with it the process, as a rule.
          if (const auto how = how_it_ends(local->child)) hooks_.tell(ProcessEnding{process, *how});
        });
      }) {
  if (!copies_) return;
  copies_fd_ = copies_->death_fd();
  loop_.watch(copies_fd_,
              [this](bool, bool, bool) { drop_copies("the fork server is gone: " + copies_->end()); });
}

LocalLinks::Local* LocalLinks::find(ProcessId process) {
  const auto at = all_.find(process);
  return at == all_.end() ? nullptr : &at->second;
}

Result<void> LocalLinks::start(const StartWorker& worker, int program_fd, const std::string& libraries) {
  // First of all what may fail: a child that is started has to be watched.
  auto lock = DeathWatch::make_lock();
  if (!lock) return lock.error();
  auto copy = duplicate_of(lock->fd());
  auto requests = copy ? SharedMemory::map(*std::move(copy)) : Result<SharedMemory>(copy.error());
  if (!requests) return requests.error();
  auto child = start_process(worker, program_fd, libraries);
  if (!child) return child.error();
  Local& local = all_[worker.process];
  local.child = *std::move(child);
  local.lock = *std::move(lock);
  local.requests = *std::move(requests);
  watch(worker.process, local);
  loop_.watch(local.child.pidfd.get(),
              [this, process = worker.process](bool, bool, bool) { child_ended(process); });
  watch_output(worker.process, local, false);
  watch_output(worker.process, local, true);
  return {};
}

Result<Child> LocalLinks::start_process(const StartWorker& worker, int program_fd,
                                        const std::string& libraries) {
  std::string gpus = std::string(kVisibleDevicesVariable) + "=";
  for (const std::string& gpu : worker.gpus) gpus += (gpus.back() == '=' ? "" : ",") + gpu;
  std::vector<std::string> environment{gpus};
  if (const char* others = std::getenv(kLibraryPathVariable); !libraries.empty())
    environment.push_back(library_path(libraries, others == nullptr ? "" : others));
  const ChildOptions options{.role = "worker",
                             .program_fd = program_fd,
                             .capture_output = true,
                             .oom_score_adj = kWorkerOomScore,
                             .environment = std::move(environment)};
  // CUDA, if the program has touched it before init, does not survive a fork.
  if (program_fd < 0 && worker.gpus.empty() && copies_) {
    auto child = copies_->start(options);
    if (child) return child;
    drop_copies(child.error().message());
  }
  return start_child(options);
}

void LocalLinks::drop_copies(const std::string& why) {
  log(LogLevel::kWarning, why + "; workers are executed instead");
  loop_.forget(copies_fd_);
  copies_.reset();
}

void LocalLinks::adopt(ProcessId driver, SocketLink link) {
  Local& local = all_[driver];
  local.child.link = std::move(link);
  watch(driver, local);
}

void LocalLinks::watch(ProcessId process, Local& local) {
  local.link_watched = true;
  loop_.watch(local.child.link.fd(), [this, process](bool readable, bool writable, bool closed) {
    if (Local* found = find(process); found != nullptr && writable) flush(*found);
    if (readable || closed) read_link(process, closed);
  });
}

void LocalLinks::unwatch_link(Local& local) {
  if (std::exchange(local.link_watched, false)) loop_.forget(local.child.link.fd());
}

void LocalLinks::read_link(ProcessId process, bool closed) {
  // A process that has closed its end sends no more: the rest is at most what the socket holds. It is read at
  // once, so that the end is not behind a backlog of turns.
  const int most = closed ? kLastMessages : kMessagesATurn;
  for (int i = 0; i < most; ++i) {
    Local* local = find(process);  // a message may end it
    if (local == nullptr || !local->link_watched) return;
    Message message;
    const auto got = local->child.link.receive(message);
    if (got == SocketLink::Got::kNothing) return;
    if (got == SocketLink::Got::kMessage) {
      hooks_.frame(process, std::move(message));
      continue;
    }
    unwatch_link(*local);
    // A child is ending; its pidfd says how. A driver's end is its link's.
    if (local->child.pid < 0)
      hooks_.tell(ProcessEnded{process, "the driver is gone: " + local->child.link.why_closed()});
    return;
  }
}

Result<UniqueFd> LocalLinks::life_lock(ProcessId process) const {
  const auto at = all_.find(process);
  if (at == all_.end() || !at->second.lock) return gone();
  UniqueFd copy(::fcntl(at->second.lock.fd(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return io_error("cannot configure a worker", errno, "raise ulimit -n");
  return copy;
}

void LocalLinks::keep_fds(ProcessId process, std::vector<UniqueFd> fds) {
  if (Local* local = find(process)) local->received = std::move(fds);
}

void LocalLinks::welcome(ProcessId process) {
  Local* local = find(process);
  if (local == nullptr || local->received.empty()) return;
  local->doorbell = std::move(local->received.front());
  local->received.clear();
  if (local->lock) deaths_.add(process, std::move(local->lock));
}

Result<UniqueFd> LocalLinks::doorbell(ProcessId process) const {
  const auto at = all_.find(process);
  if (at == all_.end() || !at->second.doorbell) return gone();
  return at->second.doorbell.duplicate();
}

pid_t LocalLinks::pid_of(ProcessId process) const {
  const auto at = all_.find(process);
  return at == all_.end() ? -1 : at->second.child.pid;
}

Result<void> LocalLinks::ask_for_dump(ProcessId process, const std::string& folder) const {
  const auto at = all_.find(process);
  if (at == all_.end() || !at->second.requests) return gone();
  return troupe::ask_for_dump(at->second.requests, folder);
}

bool LocalLinks::is_dumped(ProcessId process) const {
  const auto at = all_.find(process);
  return at != all_.end() && at->second.requests && troupe::is_dumped(at->second.requests);
}

// Sending.

void LocalLinks::send(ProcessId process, const wire::FrameHeader& header, wire::ByteView body,
                      std::vector<UniqueFd> fds) {
  Local* local = find(process);
  if (local == nullptr) return;
  Sent sent = Sent::kFull;
  if (local->kept.empty()) sent = local->child.link.send(header, body, std::move(fds));
  if (local->child.link.wants_write()) want_room(*local);
  if (sent == Sent::kQueued || sent == Sent::kClosed)
    return;  // closed: the process is ending, and that is told
  if (sent == Sent::kTooLarge) {
    hooks_.refuse(header,
                  {ErrorCode::kLimit, "a message is too long", std::to_string(body.size()) + " bytes", ""});
    return;
  }
  switch (when_full(header, local->kept_bytes, stuck_bytes_)) {
    case WhenFull::kRefuse:
      hooks_.refuse(header, {ErrorCode::kUnavailable, "the actor's process does not take messages now",
                             "too many bytes wait for it already", "call it again later"});
      return;
    case WhenFull::kKeep:
      local->kept_bytes += body.size() + wire::kHeaderBytes;
      local->kept.push_back({header, wire::Bytes(body.begin(), body.end()), std::move(fds)});
      want_room(*local);
      return;
    case WhenFull::kClose:
      if (!std::exchange(local->stuck, true)) hooks_.tell(LocalStuck{process, local->kept_bytes});
  }
}

void LocalLinks::want_room(Local& local) {
  if (!local.link_watched || std::exchange(local.waits_for_room, true)) return;
  loop_.watch_writable(local.child.link.fd(), true);
}

void LocalLinks::flush(Local& local) {
  SocketLink& link = local.child.link;
  link.flush();
  while (!local.kept.empty() && link.has_room()) {
    Message& first = local.kept.front();
    const std::size_t bytes = first.body.size() + wire::kHeaderBytes;
    if (link.send(first.header, first.body, std::move(first.fds)) == Sent::kFull) break;
    local.kept_bytes -= bytes;
    local.kept.pop_front();
  }
  if (link.wants_write() || !local.kept.empty()) return;
  if (std::exchange(local.waits_for_room, false) && local.link_watched)
    loop_.watch_writable(link.fd(), false);
}

// Output.

void LocalLinks::watch_output(ProcessId process, Local& local, bool error) {
  const UniqueFd& pipe = local.pipe(error);
  if (!pipe || std::exchange(local.stream(error).watched, true)) return;
  loop_.watch(pipe.get(), [this, process, error](bool, bool, bool) { read_output(process, error); });
}

void LocalLinks::unwatch_output(Local& local, bool error) {
  if (std::exchange(local.stream(error).watched, false)) loop_.forget(local.pipe(error).get());
}

void LocalLinks::read_output(ProcessId process, bool error) {
  char buffer[64 * 1024];
  for (std::size_t read = 0; read < kOutputATurn;) {
    Local* local = find(process);
    if (local == nullptr || !local->pipe(error)) return;
    const std::uint32_t turn = error ? output_turn_in(local->requests).turn.load() : 0;
    const ssize_t got = ::read(local->pipe(error).get(), buffer, sizeof buffer);
    if (got < 0) return;  // nothing more now
    read += static_cast<std::size_t>(got);
    OutputLines& lines = local->stream(error).lines;
    std::string whole = got == 0 ? lines.finish() : lines.feed({buffer, static_cast<std::size_t>(got)}, turn);
    if (got == 0) {
      unwatch_output(*local, error);
      local->pipe(error).reset();
    }
    if (!whole.empty()) hooks_.wrote(process, error, whole);
    if (!whole.empty()) hooks_.tell(WorkerWrote{process, error, std::move(whole)});
    if (got == 0 || holds_output(process, error)) return;
  }
}

void LocalLinks::hold_output(ProcessId process, bool error, const std::string& text) {
  Local* local = find(process);
  if (local == nullptr) return;
  local->stream(error).hold.keep(text);
  unwatch_output(*local, error);
}

bool LocalLinks::holds_output(ProcessId process, bool error) const {
  const auto at = all_.find(process);
  return at != all_.end() && !(error ? at->second.errors : at->second.output).hold.is_empty();
}

void LocalLinks::retry_output() {
  std::vector<std::pair<ProcessId, bool>> held;
  for (const auto& [process, local] : all_) {
    for (const bool error : {false, true}) {
      if (holds_output(process, error)) held.emplace_back(process, error);
    }
  }
  for (const auto& [process, error] : held) {
    Local* local = find(process);
    if (local == nullptr) continue;
    watch_output(process, *local, error);
    // May be held again.
    hooks_.tell(WorkerWrote{process, error, local->stream(error).hold.take()});
  }
}

// The end of a process.

void LocalLinks::kill(ProcessId process, const std::string& reason) {
  Local* local = find(process);
  if (local == nullptr) return;
  if (local->child.pid > 0) return signal_child(local->child, SIGKILL);
  unwatch_link(*local);
  local->child.link.shutdown(reason);
  hooks_.tell(ProcessEnded{process, reason});
}

void LocalLinks::child_ended(ProcessId process) {
  Local* local = find(process);
  if (local == nullptr) return;
  const std::string how = reap(local->child);
  if (how.empty()) return;  // not yet: the pidfd stays readable
  loop_.forget(local->child.pidfd.get());
  read_output(process, false);  // what was written last
  read_output(process, true);
  hooks_.tell(ProcessEnded{process, how});
}

void LocalLinks::drain(ProcessId process) {
  Local* local = find(process);
  if (local == nullptr) return hooks_.tell(OutputDrained{process, ""});
  if (local->link_watched) {
    // Its last answers go out before its death is told.
    Message message;
    for (int i = 0; i < kLastMessages && local->child.link.receive(message) == SocketLink::Got::kMessage;
         ++i) {
      hooks_.frame(process, std::move(message));
      message = {};
    }
    unwatch_link(*local);
  }
  for (const bool error : {false, true}) {
    if (holds_output(process, error))
      hooks_.tell(WorkerWrote{process, error, local->stream(error).hold.take()});
    read_output(process, error);
  }
  if (local->requests.size() == 0) return hooks_.tell(OutputDrained{process, ""});  // a driver
  const OutputTurn& now = output_turn_in(local->requests);
  hooks_.tell(OutputDrained{process, local->errors.lines.last_line(now.turn, now.unread)});
}

void LocalLinks::forget(ProcessId process) {
  Local* local = find(process);
  if (local == nullptr) return;
  deaths_.remove(process);
  unwatch_link(*local);
  unwatch_output(*local, false);
  unwatch_output(*local, true);
  if (local->child.pidfd) loop_.forget(local->child.pidfd.get());
  all_.erase(process);
}

}  // namespace troupe::node
