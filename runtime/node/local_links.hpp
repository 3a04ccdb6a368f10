/// The links, descriptors and children behind a node's processes (local_processes.hpp decides on them).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/node/child.hpp"
#include "runtime/node/death_watch.hpp"
#include "runtime/node/event_loop.hpp"
#include "runtime/node/fork_server.hpp"
#include "runtime/node/node_events.hpp"
#include "runtime/node/output_lines.hpp"

namespace troupe::node {

/// Everything runs in the loop's thread.
class LocalLinks {
 public:
  struct Hooks {
    std::function<void(NodeEvent)> tell;
    std::function<void(ProcessId, Message)> frame;  ///< one arrived
    std::function<void(const wire::FrameHeader&, const ErrorInfo&)> refuse;
    std::function<void(ProcessId, bool error, const std::string&)> wrote;  ///< lines, once
  };
  /// `copies`: of our own executable; none: it is executed again for each worker.
  LocalLinks(EventLoop& loop, std::size_t stuck_bytes, std::optional<ForkServer> copies, Hooks hooks);
  LocalLinks(const LocalLinks&) = delete;
  LocalLinks& operator=(const LocalLinks&) = delete;

  /// Starts a worker from `program_fd` (-1: our own executable), whose shared libraries are looked for in
  /// `libraries` first. Errors: kIo.
  Result<void> start(const StartWorker& worker, int program_fd, const std::string& libraries);
  /// Takes up the driver at the other end of `link`.
  void adopt(ProcessId driver, SocketLink link);
  /// The descriptor of a worker's life lock, for its Configure.
  Result<UniqueFd> life_lock(ProcessId process) const;
  /// Keeps the doorbell that came with its hello, and watches its lock.
  void welcome(ProcessId process);
  Result<UniqueFd> doorbell(ProcessId process) const;
  /// Of the kernel; -1: it is gone, or a driver.
  pid_t pid_of(ProcessId process) const;
  /// Has a worker write what it is at into `folder` (dump_request.hpp). Errors: kUnavailable, kRefused.
  Result<void> ask_for_dump(ProcessId process, const std::string& folder) const;
  bool is_dumped(ProcessId process) const;
  void keep_fds(ProcessId process, std::vector<UniqueFd> fds);

  /// Sends, or keeps until there is room, or refuses (route.hpp, when_full). Nothing to a process that is
  /// gone.
  void send(ProcessId process, const wire::FrameHeader& header, wire::ByteView body,
            std::vector<UniqueFd> fds = {});
  void kill(ProcessId process, const std::string& reason);
  /// Reads what a dying process sent and wrote last, and tells OutputDrained.
  void drain(ProcessId process);
  void forget(ProcessId process);

  /// Lines of a worker that its driver has no room for: its pipe is not read until they are gone.
  void hold_output(ProcessId process, bool error, const std::string& text);
  bool holds_output(ProcessId process, bool error) const;
  /// Tries again; on a tick, and when a driver has room again.
  void retry_output();

 private:
  struct Stream {
    OutputLines lines;
    OutputHold hold;
    bool watched = false;
  };
  struct Local {
    Child child;  ///< pid -1: the driver
    SharedMemory lock;
    SharedMemory requests;  ///< the same memory, as long as the process lives
    UniqueFd doorbell;
    std::vector<UniqueFd> received;  ///< with its hello
    std::deque<Message> kept;        ///< found no room in the link
    std::size_t kept_bytes = 0;
    bool waits_for_room = false;
    bool stuck = false;
    bool link_watched = false;
    Stream output;
    Stream errors;

    Stream& stream(bool error) { return error ? errors : output; }
    UniqueFd& pipe(bool error) { return error ? child.errors : child.output; }
  };

  Local* find(ProcessId process);
  void watch(ProcessId process, Local& local);
  void read_link(ProcessId process, bool closed);
  void flush(Local& local);
  void want_room(Local& local);
  void watch_output(ProcessId process, Local& local, bool error);
  void unwatch_output(Local& local, bool error);
  void unwatch_link(Local& local);
  void read_output(ProcessId process, bool error);
  void child_ended(ProcessId process);

  Result<Child> start_process(const StartWorker& worker, int program_fd, const std::string& libraries);
  /// From now on workers are executed.
  void drop_copies(const std::string& why);

  EventLoop& loop_;
  const std::size_t stuck_bytes_;
  std::optional<ForkServer> copies_;
  int copies_fd_ = -1;  ///< readable once they are gone
  const Hooks hooks_;
  std::map<ProcessId, Local> all_;
  DeathWatch deaths_;  ///< last: its thread posts about the others
};

}  // namespace troupe::node
