#include "runtime/node/fork_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/ending.hpp"
#include "runtime/core/thread_limit.hpp"
#include "runtime/link/socket/descriptors.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMostBytes = 64 * 1024;  ///< of a request
constexpr std::size_t kMostFds = 3;
constexpr Duration kForks = std::chrono::seconds(2);
constexpr Duration kLoadsAndForks = std::chrono::seconds(30);
constexpr int kLookMs = 50;
constexpr int kOrphanLooks = 20'000;  ///< of 50 us each

/// What is sent with descriptors. No message has more than kMostFds.
bool send_packet(int socket, std::string_view bytes, std::span<const int> fds) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  attach_descriptors(message, control, fds);
  ssize_t sent = 0;
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

struct Request {
  std::string text;
  std::vector<UniqueFd> fds;  ///< link, and output and errors if captured
};

/// Nothing: the node is gone.
std::optional<Request> receive_request(int socket) {
  Request request;
  request.text.resize(kMostBytes);
  iovec part{request.text.data(), request.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return std::nullopt;
  request.text.resize(static_cast<std::size_t>(got));
  take_descriptors(message, request.fds);
  return request;
}

void answer(int socket, int pid_or_error) {
  send_packet(socket, {reinterpret_cast<const char*>(&pid_or_error), sizeof pid_or_error}, {});
}

/// What `ps` shows, as far as there is room.
void set_title(const std::string& role) {
  const std::size_t room = std::strlen(program_invocation_name);
  const std::string title = "troupe-" + role;
  std::memset(program_invocation_name, ' ', room);
  std::copy_n(title.begin(), std::min(room, title.size()), program_invocation_name);
  ::prctl(PR_SET_NAME, title.c_str());
}

/// A process that was just forked by `between`, which ends now. It is another's child then: the asker's, or
/// init's if the asker died meanwhile, and settle_child() ends it. It says twice who it is: before it leaves
/// the server's group, in which ForkServer::end() finds it until then, and once it is settled.
SocketLink settle(Request request, int socket, pid_t between, pid_t asker) {
  ::signal(SIGTERM, SIG_DFL);
  for (int i = 0; i < kOrphanLooks && ::getppid() == between; ++i) ::usleep(50);
  answer(socket, ::getpid());
  const auto fd = [&](std::size_t i) { return i < request.fds.size() ? request.fds[i].get() : -1; };
  std::vector<std::string> words;
  for (const char* at = request.text.c_str(); at < request.text.data() + request.text.size();
       at += words.back().size() + 1)
    words.emplace_back(at);
  words.resize(std::max<std::size_t>(words.size(), 2));
  settle_child(asker, words[0], fd(1), fd(2), words[1].c_str());
  set_title(words[0]);
  ::setenv(kRoleVariable, words[0].c_str(), 1);
  for (std::size_t i = 2; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (equals != std::string::npos)
      ::setenv(words[i].substr(0, equals).c_str(), words[i].c_str() + equals + 1, 1);
  }
  answer(socket, ::getpid());
  return SocketLink(std::move(request.fds.front()));
}

/// In the server, until the asker is gone; returns in copies.
SocketLink serve(UniqueFd socket, pid_t asker) {
  ::prctl(PR_SET_NAME, "troupe-fork");
  ::signal(SIGTERM, SIG_IGN);  // to all processes of a cluster: whoever forks here goes on until it is ended
  for (;;) {
    auto request = receive_request(socket.get());
    if (!request || request->fds.empty()) ::_exit(0);
    // The one between shares this memory: a copy of the page tables takes 6 ms of a program with LibTorch.
    const pid_t first = ::vfork();
    if (first == 0) {
      const pid_t between = ::getpid(), copy = ::fork();
      if (copy == 0) return settle(*std::move(request), socket.get(), between, asker);
      if (copy < 0) answer(socket.get(), -errno);
      ::_exit(0);
    }
    if (first < 0) answer(socket.get(), -errno);
    int status = 0;
    while (first > 0 && ::waitpid(first, &status, 0) < 0 && errno == EINTR) {
    }
  }
}

int count_threads() {
  std::error_code none;
  int threads = 0;
  for (std::filesystem::directory_iterator at("/proc/self/task", none), end; !none && at != end;
       at.increment(none))
    ++threads;
  return threads;
}

bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const std::size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat.substr(name_end + 2, 1) == "T";
}

}  // namespace

Result<ForkServer> ForkServer::execute(std::vector<std::string> environment) {
#if defined(__SANITIZE_THREAD__)
  return ErrorInfo{ErrorCode::kRefused, "no fork server", "a sanitizer's thread does not come along", ""};
#endif
  auto child = start_child({.role = kForkServerRole, .environment = std::move(environment)});
  if (!child) return child.error();
  UniqueFd socket = std::move(child->link.socket());
  return ForkServer(std::move(socket), *std::move(child), kLoadsAndForks);
}

SocketLink serve_forks() {
  // Fork handlers end the threads that they know, so it takes one to see who is left.
  const pid_t asker = ::getppid(), trial = ::fork();
  if (trial == 0) ::_exit(0);
  int status = 0;
  if (trial > 0) ::waitpid(trial, &status, 0);
  if (trial < 0 || count_threads() != 1) ::_exit(0);
  std::fflush(nullptr);  // or each copy writes it once more
  UniqueFd socket(::fcntl(kLinkFd, F_DUPFD_CLOEXEC, 10));
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (!socket || ::fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) ::_exit(1);
  return serve(std::move(socket), asker);
}

ForkServerBegun begin_fork_server() {
#if defined(__SANITIZE_THREAD__)
  return {};
#endif
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  UniqueFd ours(ends[0]), theirs(ends[1]);
  std::fflush(nullptr);
  const pid_t node = ::getpid();
  const pid_t server = ::fork();
  if (server < 0) return {};
  if (server == 0) {
    ours.reset();
    settle_child(node, "worker", -1, -1, "");
    // The number stays taken: whoever holds it here closes it.
    const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    ::dup3(nothing.get(), kLinkFd, O_CLOEXEC);
    return {std::nullopt, serve(std::move(theirs), node)};
  }
  // A thread that goes on may have held a lock as it was copied.
  auto process = watch(Child(), server);
  if (!process) return {};
  ForkServer begun(std::move(ours), *std::move(process), kForks);
  if (count_threads() != 1) return {};
  return {std::move(begun), std::nullopt};
}

ForkServer::~ForkServer() {
  if (process_.pidfd) end();
}

std::string ForkServer::end() {
  // Whoever it forked and that is not a process of ours yet is in its group, and orphans of now are ours.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  signal_child(process_, SIGKILL);
  wait_ended(process_, kForks);
  std::string how = reap(process_);
  // A copy that has left the group had said before who it is; nobody else knows of it.
  std::set<pid_t> unsettled{unsettled_};
  for (int pid = 0; ::recv(socket_.get(), &pid, sizeof pid, MSG_DONTWAIT) == sizeof pid;)
    unsettled.insert(pid);
  for (const pid_t pid : unsettled) {
    if (pid <= 0) continue;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  const MonotonicClock clock;
  for (const Instant deadline = clock.now() + kForks; clock.now() < deadline;) {
    const pid_t reaped = ::waitpid(-process_.pid, nullptr, WNOHANG);
    if (reaped < 0 && errno == ECHILD) break;
    if (reaped == 0) ::usleep(1000);
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  process_.pidfd.reset();
  socket_.reset();
  return how;
}

int ForkServer::ask(const ChildOptions& options, const ChildEnds& theirs) {
  std::string text = options.role + '\0' + std::to_string(options.oom_score_adj) + '\0';
  for (const std::string& variable : options.environment) text += variable + '\0';
  std::vector<int> fds{theirs.link.get()};
  if (options.capture_output) fds.insert(fds.end(), {theirs.output.get(), theirs.errors.get()});
  if (text.size() > kMostBytes) return -E2BIG;
  if (!send_packet(socket_.get(), text, fds)) return -EPIPE;
  const MonotonicClock clock;
  const Instant deadline = clock.now() + std::exchange(timeout_, kForks);  // it is loaded when it answers
  for (Instant looks = clock.now() + kForks;;) {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, kLookMs) > 0) {
      int pid = 0;
      if (::recv(socket_.get(), &pid, sizeof pid, 0) != sizeof pid) return -EPIPE;
      if (pid < 0) return pid;
      if (std::exchange(unsettled_, pid) == pid) return std::exchange(unsettled_, 0);
    }
    const Instant now = clock.now();
    if (now >= deadline) return -ETIMEDOUT;
    if (now >= looks && (is_stopped(process_.pid) || is_stopped(unsettled_))) return -ETIMEDOUT;
  }
}

Result<Child> ForkServer::start(const ChildOptions& options) {
  auto made = make_ends(options.capture_output);
  if (!made) return made.error();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const int pid = ask(options, made->second);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (pid > 0) return watch(std::move(made->first), pid);
  const std::string what = "cannot fork a " + options.role;
  if (pid == -ETIMEDOUT) {
    const std::string how = is_stopped(process_.pid) ? "is stopped (SIGSTOP)"
                            : is_stopped(unsettled_) ? "has a copy that is stopped (SIGSTOP)"
                                                     : "did not answer in time";
    end();
    return ErrorInfo{ErrorCode::kIo, what, "the fork server " + how + "; it was killed",
                     "see who stops processes of the cluster, or what keeps the machine so busy"};
  }
  const std::string how = end();
  if (pid != -EPIPE)
    return io_error(what, -pid, pid == -EAGAIN ? kRaiseProcesses : "see the node's limits (ulimit -a)");
  if (how == ended_with_code(0))
    return ErrorInfo{ErrorCode::kRefused, what, "the program has threads before init", ""};
  return ErrorInfo{ErrorCode::kIo, what, "the fork server is gone: " + how,
                   "see who ends processes of the cluster"};
}

}  // namespace troupe
