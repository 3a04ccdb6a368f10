#include "tests/e2e/support.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "runtime/core/fd.hpp"

namespace troupe::e2e {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kMark = "TROUPE_TEST_MARK";
constexpr const char* kFolder = "TROUPE_TEST_FOLDER";

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("the test itself failed: " + what);
}

struct Connection {
  UniqueFd fd;
  std::uint16_t from = 0, to = 0;  ///< ports
};
/// Of another process, which goes on with them.
std::vector<Connection> connections_of(pid_t pid) {
  std::vector<Connection> found;
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) fail("no pidfd of process " + std::to_string(pid));
  for (const auto& name : names_in("/proc/" + std::to_string(pid) + "/fd")) {
    Connection one;
    one.fd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), std::stoi(name), 0)));
    sockaddr_in6 own{}, peer{};  // the port of an IPv4 address is where that of an IPv6 address is
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    const bool is_connected =
        one.fd && ::getsockname(one.fd.get(), reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
        ::getpeername(one.fd.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
        (own.sin6_family == AF_INET || own.sin6_family == AF_INET6);
    if (!is_connected) continue;
    one.from = own.sin6_port;
    one.to = peer.sin6_port;
    found.push_back(std::move(one));
  }
  return found;
}

struct Stat {
  std::string name;
  char state = 0;
  pid_t parent = -1;
};

Stat stat_of(const fs::path& process) {
  Stat stat;
  const std::string text = read_file(process / "stat");
  const auto open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return stat;
  stat.name = text.substr(open + 1, close - open - 1);
  std::istringstream(text.substr(close + 1)) >> stat.state >> stat.parent;
  return stat;
}

void for_each_process(const std::function<void(pid_t, const fs::path&)>& visit) {
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; at != end; at.increment(error)) {
    if (const pid_t pid = std::atoi(at->path().filename().c_str()); pid > 0) visit(pid, at->path());
  }
}

}  // namespace

BusyLoops::BusyLoops(int count) {
  const pid_t parent = ::getpid();
  for (int i = 0; i < count; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(0);
      for (std::atomic<std::uint64_t> n{0};;) n.fetch_add(1, std::memory_order_relaxed);
    }
    if (pid > 0) pids_.push_back(pid);
  }
}

BusyLoops::~BusyLoops() {
  for (const pid_t pid : pids_) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

Program::Program(const std::string& test_case, const std::string& folder) {
  static std::atomic<int> next{0};
  mark_ = std::to_string(::getpid()) + "." + std::to_string(next++) + "." +
          std::to_string(MonotonicClock().now().count());
  ::setenv(kMark, mark_.c_str(), 1);
  ::setenv(kFolder, folder.c_str(), 1);
  const std::string out = folder + "/out", err = folder + "/err";
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), STDERR_FILENO);
    ::execl("/proc/self/exe", "program", test_case.c_str(), "--warn", "NoTests", nullptr);
    ::_exit(127);
  }
  ::unsetenv(kMark);
  ::unsetenv(kFolder);
  if (pid_ < 0) fail("fork");
}

Program::~Program() {
  for (int i = 0; i < 100; ++i) {
    const auto left = processes();
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    if (!reaped_) reaped_ = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
    if (left.empty() && reaped_) return;
    std::this_thread::sleep_for(50ms);
  }
}

std::string Program::wait(Duration timeout) {
  int status = 0;
  if (!eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, timeout))
    return "it did not end";
  reaped_ = true;
  return WIFEXITED(status) ? "exit code " + std::to_string(WEXITSTATUS(status))
                           : "killed by signal " + std::to_string(WTERMSIG(status));
}

void Program::kill(int signal) {
  ::kill(pid_, signal);
}

std::vector<pid_t> Program::processes() const {
  std::vector<pid_t> found;
  const std::string entry = std::string(kMark) + "=" + mark_;
  for_each_process([&](pid_t pid, const fs::path& path) {
    const std::string environment = read_file(path / "environ");
    if (environment.find(entry + '\0') != std::string::npos && stat_of(path).state != 'Z')
      found.push_back(pid);
  });
  return found;
}

std::string program_folder() {
  const char* folder = std::getenv(kFolder);
  if (folder == nullptr) fail("this test case is a program that another one runs");
  return folder;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text << std::flush;
  fs::rename(path + ".new", path);
}

std::vector<pid_t> children(pid_t parent, const std::string& name) {
  std::vector<pid_t> found;
  for_each_process([&](pid_t pid, const fs::path& path) {
    const Stat stat = stat_of(path);
    if (stat.parent == parent && stat.state != 'Z' &&
        (name.empty() ? stat.name != "troupe-fork" : stat.name == name))
      found.push_back(pid);
  });
  return found;
}

std::size_t cut_connections(const std::vector<pid_t>& processes) {
  std::vector<Connection> all;
  for (const pid_t process : processes) {
    auto its = connections_of(process);
    std::move(its.begin(), its.end(), std::back_inserter(all));
  }
  std::size_t cut = 0;
  for (const auto& one : all) {
    const bool is_between = std::any_of(all.begin(), all.end(), [&](const Connection& other) {
      return other.from == one.to && other.to == one.from;
    });
    if (is_between && ::shutdown(one.fd.get(), SHUT_RDWR) == 0) ++cut;
  }
  return cut;
}

bool is_alive(pid_t pid) {
  const char state = stat_of("/proc/" + std::to_string(pid)).state;
  return state != 0 && state != 'Z';
}

bool stand_still(pid_t pid) {
  ::kill(pid, SIGSTOP);
  return eventually([&] {
    const fs::path threads = "/proc/" + std::to_string(pid) + "/task";
    std::error_code error;
    for (fs::directory_iterator at(threads, error), end; !error && at != end; at.increment(error)) {
      if (stat_of(at->path()).state != 'T') return false;
    }
    return !error;
  });
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string pattern(std::uint64_t index, std::size_t size) {
  std::string bytes(size, '\0');
  std::uint64_t word = index * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t at = 0; at < size; at += sizeof word) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, size - at));
  }
  return bytes;
}

std::size_t Tally::failures() const {
  std::size_t sum = 0;
  for (const auto& [code, times] : failed) sum += times;
  return sum;
}

std::size_t Tally::all() const {
  return right + wrong + unanswered + failures();
}

void Tally::error(const ErrorInfo& info) {
  ++failed[std::string(error_code_name(info.code))];
  if (first_error.empty()) first_error = info.message();
}

std::string Tally::to_string() const {
  std::string text = std::to_string(right) + " answered right, " + std::to_string(wrong) + " wrong, " +
                     std::to_string(unanswered) + " unanswered";
  for (const auto& [code, times] : failed) text += ", " + std::to_string(times) + " failed (" + code + ")";
  if (!first_error.empty()) text += "; the first error: " + first_error;
  return text;
}

}  // namespace troupe::e2e
