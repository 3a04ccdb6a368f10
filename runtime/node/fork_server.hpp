/// Processes of our own executable as copies of one that is loaded already.
///
/// A program that links LibTorch takes half a second of CPU to be loaded and relocated; a copy of one starts
/// in some milliseconds. So a fork server forks whoever it is asked for. That process is a child of who asked
/// nevertheless: whoever forked it ends at once, and orphans of that moment are the asker's
/// (PR_SET_CHILD_SUBREAPER). It has what the program made before troupe::init: statics, and what main did
/// until there, once a server.
///
/// A node forks its server from itself before it has any thread; a program executes one for its head and
/// nodes.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "runtime/node/child.hpp"

namespace troupe {

/// The server, as who asks it sees it. Not thread-safe. The server ends with this object, and with the
/// process.
class ForkServer {
 public:
  /// Executes our own executable as a server. `environment` (NAME=VALUE each) is in all of its copies.
  /// Errors: as start_child().
  static Result<ForkServer> execute(std::vector<std::string> environment = {});
  /// `process` is the server, `socket` leads to it.
  ForkServer(UniqueFd socket, Child process, Duration timeout)
      : socket_(std::move(socket)), process_(std::move(process)), timeout_(timeout) {}
  ForkServer(ForkServer&&) noexcept = default;
  ForkServer& operator=(ForkServer&&) noexcept = default;
  ~ForkServer();

  /// As start_child(), of this executable. Takes some milliseconds once the server is loaded, and
  /// two seconds if it, or the copy, is stopped. An error says what became of the server, which has ended
  /// then and is reaped. Errors: kIo; kRefused, of a program with threads of its own.
  Result<Child> start(const ChildOptions& options);
  /// Readable once the server has ended.
  int death_fd() const { return process_.pidfd.get(); }
  /// Ends it and what it is halfway with, and reaps all of it: how it ended, as reap() says it.
  std::string end();

 private:
  /// Its answer: a process, or an error's number below 0.
  int ask(const ChildOptions& options, const ChildEnds& theirs);

  UniqueFd socket_;
  Child process_;
  Duration timeout_;
  pid_t unsettled_ = 0;  ///< a copy that has said who it is and is not settled yet
};

/// The server's own life, in a process that was executed for it: returns in each copy, with its link. Its
/// role is in the environment, as if it had been executed. The process ends where it has threads, and nobody
/// is copied.
SocketLink serve_forks();

struct ForkServerBegun {
  std::optional<ForkServer> server;  ///< none where this process had a thread beside the calling one
  std::optional<SocketLink> link;    ///< in a copy
};
/// Forks a server from this process, which has `link` on kLinkFd. Returns here, and once more in each copy,
/// as serve_forks() does. Threads that fork handlers end (OpenBLAS's) are no hindrance.
ForkServerBegun begin_fork_server();

}  // namespace troupe
