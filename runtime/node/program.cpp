#include "runtime/node/program.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "runtime/core/thread_limit.hpp"

namespace troupe::node {
namespace {

constexpr int kMostRounds = 20;

std::string_view value_of(const std::vector<std::string>& environment, std::string_view name) {
  for (const std::string& entry : environment) {
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=')
      return std::string_view(entry).substr(name.size() + 1);
  }
  return {};
}

/// The file to execute. Not through execvp: that runs what is no program as a shell's script.
Result<std::string> find_program(const ProgramOptions& options) {
  const std::string& name = options.program.at(0);
  if (name.find('/') != std::string::npos) return name;
  const std::string_view all = value_of(options.environment, "PATH");
  for (std::string_view rest = all; !rest.empty();) {
    const auto end = rest.find(':');
    const std::string_view folder = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (folder.empty()) continue;
    std::string path = std::string(folder) + "/" + name;
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0)
      return path;
  }
  return ErrorInfo{ErrorCode::kBadInput, "cannot start the program " + name,
                   "it is in no folder of the node's PATH (" + std::string(all) + ")",
                   "install it on the nodes, or give its path"};
}

ErrorInfo exec_error(const ProgramOptions& options, const std::string& path, int error, bool folder) {
  const std::string what = "cannot start the program " + options.program[0];
  if (folder)
    return {ErrorCode::kIo, what, "its folder " + options.folder + ": " + std::strerror(error),
            "make it on every node, or look at the node's disk"};
  switch (error) {
    case ENOENT:
      return {ErrorCode::kBadInput, what,
              path + " is not on this node, or the interpreter that its first line names is not",
              "give a path that exists on every node, or submit it with its folder (troupe job submit "
              "--working-dir)"};
    case EACCES:
      return {ErrorCode::kBadInput, what, path + " is not executable",
              "chmod +x it, or name its interpreter first"};
    case ENOEXEC:
      if (std::error_code ignored; std::filesystem::file_size(path, ignored) == 0)
        return {ErrorCode::kBadInput, what, path + " is an empty file (0 bytes)", "build or copy it again"};
      return {ErrorCode::kBadInput, what,
              path + " is no program for this machine: another architecture, or a script without #!",
              "build it for the nodes, or name its interpreter first"};
    default:
      return {ErrorCode::kIo, what, path + ": " + std::strerror(error),
              "look at the node's limits (ulimit -a)"};
  }
}

/// What the child says before exec: nothing when exec succeeds.
struct Failure {
  int error = 0;
  int folder = 0;
};

/// Between fork and exec: only calls that are safe there. Never returns.
[[noreturn]] void become(const ProgramOptions& options, const char* path, char** argv, char** env,
                         int failures, pid_t parent) {
  const auto fail = [failures](int error, int in_folder) {
    const Failure failure{error, in_folder};
    [[maybe_unused]] const auto written = ::write(failures, &failure, sizeof failure);
    ::_exit(127);
  };
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  options.has_session ? ::setsid() : ::setpgid(0, 0);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  if (options.output >= 0) ::dup2(options.output, STDOUT_FILENO);
  if (options.errors >= 0) ::dup2(options.errors, STDERR_FILENO);
  const int adj =
      options.oom_score == nullptr ? -1 : ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (adj >= 0) {
    [[maybe_unused]] const auto written = ::write(adj, options.oom_score, std::strlen(options.oom_score));
  }
  // The program is to find what a shell gives it: no signal ignored, no descriptor of ours beside the
  // standard ones.
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  if (!options.folder.empty() && ::chdir(options.folder.c_str()) != 0) fail(errno, 1);
  ::execve(path, argv, env);
  fail(errno, 0);
  ::_exit(127);
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  all.reserve(words.size() + 1);
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

bool is_marked(const std::filesystem::path& process, const std::set<std::string>& entries) {
  std::ifstream file(process / "environ", std::ios::binary);
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entries.contains(entry)) return true;
  }
  return false;
}

}  // namespace

Result<Program> start_program(const ProgramOptions& options) {
  auto path = find_program(options);
  if (!path) return path.error();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return io_error("cannot make a pipe", errno, "raise ulimit -n");
  const UniqueFd told(ends[0]);
  UniqueFd failures(ends[1]);
  const auto argv = pointers(options.program), env = pointers(options.environment);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return io_error("cannot start the program " + options.program[0], errno, kRaiseProcesses);
  if (pid == 0) {
    become(options, path->c_str(), const_cast<char**>(argv.data()), const_cast<char**>(env.data()),
           failures.get(), parent);
  }
  if (!options.has_session) ::setpgid(pid, pid);  // whoever of the two comes first: a signal finds the group
  failures.reset();
  Failure failure;
  ssize_t got = 0;
  while ((got = ::read(told.get(), &failure, sizeof failure)) < 0 && errno == EINTR) {
  }
  Program program;
  program.pid = pid;
  program.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (got > 0 || !program.pidfd) {
    const int error = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    if (got > 0) return exec_error(options, *path, failure.error, failure.folder != 0);
    return io_error("cannot watch a program", error, "raise ulimit -n");
  }
  return program;
}

std::optional<ProgramExit> reap_program(const Program& program) {
  siginfo_t info{};
  const auto pid = static_cast<id_t>(program.pid);
  if (::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return std::nullopt;
  ::kill(-program.pid, SIGKILL);  // the group is its own for as long as it is not reaped
  ::waitid(P_PID, pid, &info, WEXITED);
  if (info.si_code == CLD_EXITED) return ProgramExit{info.si_status, 0};
  return ProgramExit{0, info.si_status};
}

void signal_group(const Program& program, int signal) {
  ::kill(-program.pid, signal);  // not reaped yet, so the number is still its own
}

void kill_marked(const std::set<std::string>& entries) {
  StuckProcesses none;
  kill_marked(entries, none);
}

void kill_marked(const std::set<std::string>& entries, StuckProcesses& stuck) {
  if (entries.empty()) return;
  for (int round = 0; round < kMostRounds; ++round) {  // one that is killed may have forked meanwhile
    bool found = false;
    std::error_code ignored;
    // Not a loop over the range, whose steps may throw: it runs in a thread where nobody catches that.
    for (std::filesystem::directory_iterator at("/proc", ignored), end; !ignored && at != end;
         at.increment(ignored)) {
      const std::filesystem::path process = at->path();
      const std::string name = process.filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const pid_t pid = static_cast<pid_t>(std::atoi(name.c_str()));
      const auto is_meant = [&] {
        bool is = false;
        stuck.look_at(pid, [&] { is = is_marked(process, entries); });
        return is;
      };
      if (pid == ::getpid() || !is_meant()) continue;
      const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      // The number may have gone to another process since: look again through what the descriptor holds fast.
      if (!pidfd || !is_meant()) continue;
      if (::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0) == 0) found = true;
    }
    if (!found) return;
  }
}

}  // namespace troupe::node
